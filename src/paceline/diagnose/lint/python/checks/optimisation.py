"""Check gradient accumulation, learning rate schedulers and the learning rate on several ranks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.diagnose.lint.python import loaders
from paceline.diagnose.lint.python.checks import public_names
from paceline.diagnose.lint.python.objects import argument, kinds, makes, names_of
from paceline.diagnose.lint.python.ranks import in_rank_block
from paceline.diagnose.lint.python.script import Script, inside, receiver, words_of
from paceline.errors import Finding
from paceline.text.syntax import constant, dotted, last, words

_NO_SYNC = words_of(
    """
    no_sync no_backward_sync require_backward_grad_sync sync_gradients
    set_requires_gradient_sync set_is_last_backward is_gradient_accumulation_boundary
    """
)
# Arguments of Accelerator that change the loss -> values with which they do not.
_WITHOUT_EFFECT = {"gradient_accumulation_steps": (1,), "mixed_precision": ("no", "bf16", None)}
_DEEPSPEED = "deepspeed_plugin"
_SCHEDULER = re.compile(r"sched", re.I)
_OPTIMIZER = re.compile(r"^(opt|optim|optimi[sz]er)\w*$|_(opt|optim|optimi[sz]er)$", re.I)
_SIZE = re.compile(
    r"world_?size|num_replicas|num_processes|n_?gpus|num_gpus|get_world_size|^size$|nprocs"
    r"|num_nodes",
    re.I,
)


def backward_not_accelerator(script: Script) -> Iterator[Finding]:
    """Find loss.backward() in a script whose Accelerator scales or divides the loss.

    Nothing is reported if the file calls accelerator.backward(loss) anywhere, if it divides the
    loss itself, or if it does not show a number of accumulated batches or fp16: then both may do
    the same. Beside DeepSpeed's engine a scaled backward of the same loss is wrong in any case.
    """
    calls = script.calls_of("backward")
    constructors = makes(script, "accelerator")
    keywords = [keyword for constructor in constructors for keyword in constructor.keywords]
    scaling = [keyword.arg for keyword in keywords if _changes_loss(script, keyword)]
    given = {dotted(call.args[0]) for call in calls if call.args}
    for call in calls if scaling else ():
        loss = receiver(call)
        if _DEEPSPEED in scaling and (_scaled(call) in given or (not given and _scaled(call))):
            loss = _scaled(call)
        elif given or "gradient_accumulation_steps" in _factors(script):
            continue
        if not loss or call.args or call.keywords:
            continue
        yield script.finding(
            "backward-not-accelerator",
            call,
            f"{ast.unparse(call)} leaves out what Accelerator({scaling[0]}=...) does to the loss",
            why="gradients of accumulated batches are not divided, and those of fp16 not scaled",
            fix=f"accelerator.backward({loss})",
        )


def _scaled(call: ast.Call) -> str:
    """Return the loss in ``scaler.scale(loss).backward()``; else an empty string."""
    scale = call.func.value if isinstance(call.func, ast.Attribute) else None
    if not isinstance(scale, ast.Call) or last(scale) != "scale" or len(scale.args) != 1:
        return ""
    return dotted(scale.args[0])


def gradients_not_averaged(script: Script) -> Iterator[Finding]:
    """Find training through the module behind DDP's wrapper, whose forward is never called.

    Nothing is reported if the wrapper is given to anything, or if gradients are reduced by hand.
    """
    if any(".grad" in ast.unparse(call) for call in script.calls_of("all_reduce")):
        return
    for name in names_of(script, "ddp"):
        uses = [node for node in script.nodes if isinstance(node, ast.Name) and node.id == name]
        loads = [use for use in uses if isinstance(use.ctx, ast.Load)]
        if not loads or not all(_is_api(script.parents.get(use)) for use in loads):
            continue
        inner = {f"{name}.module"} | {
            other
            for other, values in script.values.items()
            if all(dotted(value.value) == f"{name}.module" for value in values)
        }
        for call in script.calls:
            owner = dotted(call.func) if dotted(call.func) in inner else receiver(call)
            if owner not in inner or last(call) in public_names.MODULE - {"module"}:
                continue
            is_kept = any(isinstance(parent, ast.Assign) for parent in script.up(call))
            if not (is_kept and call.args) or not _is_trained_with(script, call):
                continue
            yield script.finding(
                "gradients-not-averaged",
                call,
                f"{dotted(call.func)}() goes past DDP's wrapper, whose forward nothing calls",
                why="without it DDP exchanges no gradients: each rank trains alone",
                fix=f"call {name}(...), and choose the part inside of the model's forward",
            )
            break


def _is_api(parent: ast.AST | None) -> bool:
    """Return whether a name is saved, loaded, or stands before an attribute of DDP."""
    if isinstance(parent, ast.Call):
        return re.search(r"save|load|resume|ckpt|checkpoint", last(parent)) is not None
    return (
        isinstance(parent, ast.Attribute)
        and parent.attr in public_names.MODULE
        and parent.attr not in ("forward", "__call__")
    )


def _is_trained_with(script: Script, call: ast.Call) -> bool:
    """Return whether a call with gradients stands in a loop that also calls backward."""
    around = list(script.up(call))
    contexts = [item for node in around if isinstance(node, ast.With) for item in node.items]
    if any(last(item.context_expr) in ("no_grad", "inference_mode") for item in contexts):
        return False
    loops = [node for node in around if isinstance(node, ast.For | ast.While)]
    backward = script.calls_of("backward")
    return any(loop in list(script.up(other)) for loop in loops[:1] for other in backward)


def _changes_loss(script: Script, keyword: ast.keyword) -> bool:
    """Return whether an argument certainly makes Accelerate divide or scale the loss."""
    if keyword.arg == _DEEPSPEED:  # its engine has a backward of its own
        values = script.candidates(keyword.value, keyword.value)
        return any(isinstance(value, ast.Call) for value in values) and not any(
            isinstance(value, ast.IfExp) or constant(value) is None for value in values
        )
    value = constant(keyword.value)
    return value is not ... and value not in _WITHOUT_EFFECT.get(keyword.arg or "", (value,))


def accumulation_syncs_every_step(script: Script) -> Iterator[Finding]:
    """Find gradient accumulation in which DDP synchronises gradients after every batch.

    Nothing is reported if no_sync or an equivalent appears in the file, and under FSDP, where
    no_sync costs memory.
    """
    # Whether the name guards just this loop is not followed; a script that knows it is believed.
    if _names(script) & _NO_SYNC or script.calls_of("accumulate"):
        return
    # Under no_sync FSDP keeps whole gradients; DeepSpeed accumulates by its configuration.
    if makes(script, "fsdp", "engine"):
        return
    for loop, _ in _accumulating(script):
        calls = (node for node in inside(loop) if isinstance(node, ast.Call))
        backward = next((call for call in calls if last(call) == "backward"), None)
        if backward is None or in_rank_block(script, backward):
            continue
        fix = _no_sync_for(script, _kinds_of(script, backward))
        if not fix or not loaders.runs_in_parallel(script, backward):
            continue
        yield script.finding(
            "accumulation-syncs-every-step",
            backward,
            "gradients are accumulated over several batches, but the ranks exchange them after"
            " each one",
            why="all exchanges but the last of each group are wasted time; the result is the same",
            fix=fix,
        )


def _no_sync_for(script: Script, owner: set[str]) -> str:
    if "accelerator" in owner:
        return (
            "with accelerator.accumulate(model): ...  # and"
            " Accelerator(gradient_accumulation_steps=n)"
        )
    if "fabric" in owner:
        return "with fabric.no_backward_sync(model, enabled=not last): ..."
    if "session" in owner or not makes(script, "ddp"):
        return ""
    return (
        "with model.no_sync() if not last else contextlib.nullcontext(): ...  # forward and"
        " backward"
    )


def _names(script: Script) -> set[str]:
    nodes = (node for node in script.nodes if isinstance(node, ast.Name | ast.Attribute))
    return script.cached("names", lambda: {last(node) for node in nodes})


def _accumulating(script: Script) -> Iterator[tuple[ast.For, ast.If]]:
    """Yield loops that step the optimizer only in every nth iteration, with that branch."""
    for loop in _loops(script):
        for statement in loop.body:
            if isinstance(statement, ast.If) and _is_boundary(script, loop, statement):
                yield loop, statement


def _is_boundary(script: Script, loop: ast.For, branch: ast.If) -> bool:
    """Return whether a loop steps the optimizer only in a branch for every nth batch."""
    others = [statement for statement in loop.body if statement is not branch]
    if not _every_nth(branch.test) or not _steps_optimizer(script, branch.body):
        return False
    return not _steps_optimizer(script, others) and _learns_each_time(loop)


def _steps_optimizer(script: Script, statements: list[ast.stmt]) -> bool:
    nodes = (node for statement in statements for node in inside(statement))
    return any(_is_step(script, node, _OPTIMIZER) for node in nodes)


def _learns_each_time(loop: ast.For) -> bool:
    """Return whether a loop calls backward outside conditions and inner loops."""
    direct = [part for part in loop.body if not isinstance(part, ast.If | ast.For | ast.While)]
    nodes = (node for statement in direct for node in inside(statement))
    return any(isinstance(node, ast.Call) and last(node) == "backward" for node in nodes)


def _loops(script: Script) -> list[ast.For]:
    return [node for node in script.nodes if isinstance(node, ast.For)]


def _every_nth(test: ast.expr) -> bool:
    # `(batch + 1) % n == 0`; `% 1` holds for every batch.
    for node in ast.walk(test):
        left = node.left if isinstance(node, ast.Compare) else None
        if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod):
            assert isinstance(node, ast.Compare)
            is_equal = isinstance(node.ops[0], ast.Eq)
            is_constant = constant(node.comparators[0]) is not ...
            return is_equal and is_constant and constant(left.right) != 1
    return False


def _is_step(script: Script, node: ast.AST, pattern: re.Pattern[str]) -> bool:
    if not isinstance(node, ast.Call) or last(node) != "step":
        return False
    if pattern.search(receiver(node).rpartition(".")[2]):
        return True
    # A GradScaler steps the optimizer that it is given.
    return pattern is _OPTIMIZER and "scaler" in receiver(node).lower() and bool(node.args)


def scheduler_stepped_n_times(script: Script) -> Iterator[Finding]:
    """Find schedulers that are stepped for each rank or micro-batch, not each optimizer step.

    Accelerate steps a prepared scheduler once per process at each call, which is right for
    schedules in single-process batches and wrong for schedules in epochs.
    """
    yield from _per_micro_batch(script)
    yield from _once_per_process(script)
    yield from _prepared_per_epoch(script)


def _per_micro_batch(script: Script) -> Iterator[Finding]:
    # Within accumulate() Accelerate leaves out the steps of a prepared scheduler between updates.
    if not makes(script, "ddp", "fabric", "accelerator", "fsdp") or script.calls_of("accumulate"):
        return
    for loop, boundary in _accumulating(script):
        for statement in loop.body:
            call = statement.value if isinstance(statement, ast.Expr) else None
            if call is None or not _is_step(script, call, _SCHEDULER):
                continue
            yield script.finding(
                "scheduler-stepped-n-times",
                call,
                f"the scheduler is stepped for every batch, the optimizer (line {boundary.lineno})"
                " only for every nth",
                why="the learning rate falls n times as fast as the updates are counted",
                fix="step the scheduler where the optimizer is stepped",
            )


def _once_per_process(script: Script) -> Iterator[Finding]:
    ranges = [loop for loop in _loops(script) if last(loop.iter) == "range"]
    loops = [loop for loop in ranges if any(map(_SIZE.search, words(loop.iter)))]
    for node in [node for loop in loops for node in inside(loop)]:
        if not isinstance(node, ast.Call) or not _is_step(script, node, _SCHEDULER):
            continue
        if "prepared" in _kinds_of(script, node):
            yield script.finding(
                "scheduler-stepped-n-times",
                node,
                "a scheduler that Accelerate has prepared is stepped once per process by hand",
                why="each call steps it once per process already",
                fix=f"{receiver(node)}.step()  # once",
            )


def _kinds_of(script: Script, call: ast.Call) -> set[str]:
    return kinds(script, call.func.value, call) if isinstance(call.func, ast.Attribute) else set()


# Schedulers whose numbers are mostly epochs. OneCycleLR and those of transformers count batches of
# one process, which is what the repeated steps of Accelerate are for.
_BY_EPOCH = frozenset(
    ["StepLR", "MultiStepLR", "ExponentialLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts"]
)


def _prepared_per_epoch(script: Script) -> Iterator[Finding]:
    if not makes(script, "accelerator") or _splits(script):
        return
    for call in script.calls_of("step"):
        if not _is_step(script, call, _SCHEDULER) or "prepared" not in _kinds_of(script, call):
            continue
        loop = next((p for p in script.up(call) if isinstance(p, ast.For | ast.While)), None)
        if loop not in loaders.epoch_loops(script) or not _counts_epochs(script, call):
            continue
        name = receiver(call)
        yield script.finding(
            "scheduler-stepped-n-times",
            call,
            f"{name} counts epochs, and Accelerate steps a prepared scheduler once per process at"
            " each call",
            why="on N processes the learning rate falls N times as fast",
            fix=(
                f"leave {name} out of accelerator.prepare(...), or"
                " Accelerator(step_scheduler_with_optimizer=False)"
            ),
        )


def _counts_epochs(script: Script, step: ast.Call) -> bool:
    """Return whether a scheduler of torch counts epochs, whatever the number of processes is."""
    values = [assigned.value for assigned in script.assigned(receiver(step), step)]
    schedulers = [
        value
        for value in values
        if isinstance(value, ast.Call)
        and last(value) in _BY_EPOCH
        and script.full(value.func).startswith("torch.optim.lr_scheduler")
    ]
    all_words = [word for scheduler in schedulers for word in words(scheduler)]
    return bool(schedulers) and not any(map(_SIZE.search, all_words))


def _splits(script: Script) -> bool:
    # With split_batches, Accelerate's scheduler steps once at each call; without
    # step_scheduler_with_optimizer it passes each call on.
    return any(
        k.arg in (None, "split_batches", "dataloader_config", "step_scheduler_with_optimizer")
        for constructor in makes(script, "accelerator")
        for k in constructor.keywords
    )


def learning_rate_not_scaled(script: Script) -> Iterator[Finding]:
    """Find an SGD learning rate that stays while the global batch grows with the ranks."""
    # A product with the number of ranks, wherever it is, may be the learning rate's.
    if not makes(script, "ddp") or any(_SIZE.search(w) for w in _factors(script)):
        return
    sharded = [each for each in loaders.data_loaders(script) if loaders.is_sharded(script, each)]
    training = [loader for loader in sharded if loaders.is_for_training(script, loader)]
    # A batch size that is computed may be divided by the number of ranks.
    sizes = [constant(argument(loader, "batch_size", 1)) for loader in training]
    if not any(isinstance(size, int) for size in sizes):
        return
    for call in script.calls:
        # The rule of scaling is one of SGD: Adam's step does not grow with the gradient.
        if script.full(call.func) != "torch.optim.SGD" or in_rank_block(script, call):
            continue
        if not isinstance(constant(argument(call, "lr", 1)), int | float):
            continue
        yield script.finding(
            "learning-rate-not-scaled",
            call,
            "the batch of all ranks together grows with their number, the learning rate stays",
            why=(
                "with a larger global batch SGD usually needs a larger rate to learn as much per"
                " epoch"
            ),
            fix=(
                "lr = base_lr * dist.get_world_size(), or divide the batch size by the number of"
                " ranks"
            ),
            severity="hint",
        )
        return


def _factors(script: Script) -> Iterator[str]:
    """Yield the names in all products and quotients of the file."""
    for node in script.nodes:
        # Quotients too: a batch that is divided by the ranks keeps the global batch as it is.
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div | ast.FloorDiv):
            yield from words(node)
        elif isinstance(node, ast.AugAssign) and isinstance(
            node.op, ast.Mult | ast.Div | ast.FloorDiv
        ):
            yield from words(node.value)
