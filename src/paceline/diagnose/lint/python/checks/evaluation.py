"""Check metrics of a distributed evaluation: one rank's only, padded samples counted twice."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.diagnose.lint.python import loaders
from paceline.diagnose.lint.python.collective_calls import several
from paceline.diagnose.lint.python.evaluation_loops import (
    EvaluationLoop,
    around_of,
    evaluations,
    is_evaluation,
)
from paceline.diagnose.lint.python.objects import LIGHTNING, argument, kinds, makes
from paceline.diagnose.lint.python.script import Function, Script, inside, keyword
from paceline.errors import Finding
from paceline.text.syntax import constant, dotted, last

_REDUCES = re.compile(
    r"all_?reduce|all_?gather|^_?gather|gather_(object|for|all|across)|(^|_)reduce(_|$)"
    r"|reduce(d|_?(tensor|mean|sum|dict|loss))"
    r"|synchroni[sz]e|sync_(dist|between)|^sync$|aggregate|^compute(_on)?$|average_across"
    r"|mean_across|to_global|collect",
    re.I,
)
_NOT_ACROSS_RANKS = ("functools.reduce", "torch.gather", "torch.cuda.synchronize")
_NOT_REDUCING = re.compile(r"plateau|gather_nd|reduction|cuda$")
_REPORTS = re.compile(
    r"^(print|info|log|log_dict|add_scalar|add_scalars|master_print|print_log|warning|report)$"
)
_TRIMS = re.compile(r"samples_seen|num_samples|remainder|total_size|truncate|unpad", re.I)


def evaluation_not_reduced(script: Script) -> Iterator[Finding]:
    """Find metrics over one rank's samples that are reported without being reduced over the ranks.

    Nothing is reported if a function called around the evaluation reduces, gathers or synchronises,
    by its name.
    """
    for evaluation in evaluations(script):
        if reduces(script, evaluation.around) or not (report := _reported(script, evaluation)):
            continue
        yield script.finding(
            "evaluation-not-reduced",
            report,
            f"{evaluation.loader} is sharded by {evaluation.by}, and this figure is that of one"
            " rank's share",
            why="each rank has evaluated other samples; the figure depends on the number of ranks",
            fix=(
                "totals = torch.tensor([correct, count], device=device); dist.all_reduce(totals)  #"
                " then divide"
            ),
        )
    yield from _logged_without_sync(script)


def evaluation_padded(script: Script) -> Iterator[Finding]:
    """Find evaluations whose sampler repeats samples to give all ranks the same number.

    Nothing is reported with drop_last=True and if the repeated samples are removed afterwards.
    """
    for evaluation in evaluations(script):
        if not evaluation.padded or _trims(evaluation.around):
            continue
        # A figure that is not reduced has a finding of its own, which has to be fixed first.
        if not reduces(script, evaluation.around):
            continue
        yield script.finding(
            "evaluation-padded",
            evaluation.loop,
            f"{evaluation.loader} is sharded by {evaluation.by},"
            " which repeats samples so that all ranks get the same number",
            why=(
                "the average over the ranks counts those samples twice and depends on the number of"
                " ranks"
            ),
            fix=(
                "give rank r dataset[r::world_size] (Subset) for evaluation, and divide sums by"
                " counts over all ranks"
            ),
            severity="warning" if evaluation.by == "DistributedSampler" else "hint",
        )
    yield from _gathered_with_padding(script)
    yield from _trainer_pads(script)


def reduces(script: Script, nodes: list[ast.AST]) -> bool:
    """Return whether any of the nodes combines the values of the ranks, by its name."""
    if any(_reduces_by_name(script, node) for node in nodes):
        return True
    # Metric objects of these libraries reduce in compute(), which may be called in another file.
    return bool(script.roots & {"torchmetrics", "ignite", "evaluate"})


def _reduces_by_name(script: Script, node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name, full = last(node), script.full(node.func)
    if full in _NOT_ACROSS_RANKS or _NOT_REDUCING.search(name):
        return False
    if name == "synchronize" and not full.startswith("accelerate"):
        return False
    # The mean of a tensor is that of one rank; the mean of paceline's session is that of all.
    if name == "mean" and isinstance(node.func, ast.Attribute):
        return "session" in kinds(script, node.func.value, node)
    return _REDUCES.search(name) is not None


def _reported(script: Script, evaluation: EvaluationLoop) -> ast.AST | None:
    """Return the call that prints or logs the metric, or the statement that returns it."""
    loop = evaluation.loop
    function = script.function(loop)
    for node in inside(function or script.tree):
        if not isinstance(node, ast.Call) or node.lineno <= loop.lineno:
            continue
        # What is printed within the loop is progress, and a text without a variable is no result.
        parts = (part for argument in node.args for part in ast.walk(argument))
        shows_value = any(isinstance(part, ast.Name | ast.Attribute) for part in parts)
        if shows_value and _reports(script, node) and loop not in script.up(node):
            return node
    return _returned(script, function, loop) if function is not None else None


def _reports(script: Script, call: ast.Call) -> bool:
    """Return whether a call prints or logs, also through a function of the file."""
    calls = [call]
    for function in script.functions.get(last(call), []):
        calls += [part for part in inside(function) if isinstance(part, ast.Call)]
    return any(_REPORTS.search(name) for name in map(last, calls))


def _returned(script: Script, function: Function, loop: ast.For) -> ast.Return | None:
    """Return the statement after a loop that returns a value, if anything uses the value."""
    calls = script.calls_of(function.name)
    if all(isinstance(script.parents.get(call), ast.Expr) for call in calls):
        return None
    for node in inside(function):
        if isinstance(node, ast.Return) and node.value is not None and node.lineno > loop.lineno:
            return node
    return None


def _trims(nodes: list[ast.AST]) -> bool:
    """Return whether any of the nodes removes repeated samples."""
    # `predictions[: len(dataset)]` cuts what was gathered to the real samples.
    ends = [node.upper for node in nodes if isinstance(node, ast.Slice) and node.upper]
    names = [last(node) for node in nodes if isinstance(node, ast.Name | ast.Attribute)]
    return any("dataset" in ast.dump(end) for end in ends) or any(map(_TRIMS.search, names))


def _gathered_with_padding(script: Script) -> Iterator[Finding]:
    """Find calls of Accelerate's plain gather in evaluation loops."""
    if "accelerate" not in script.roots:
        return
    # By default (even_batches) Accelerate starts again at the first samples to fill the last
    # batches; gather_for_metrics() drops these, gather() does not.
    prepared = _evaluation_loaders(script)
    for call in script.calls_of("gather"):
        if not isinstance(call.func, ast.Attribute):
            continue
        if "accelerator" not in kinds(script, call.func.value, call):
            continue
        loop = _evaluation_loop_around(script, call)
        if loop is None or loaders.iterated(loop).rpartition(".")[2] not in prepared:
            continue
        if _trims(around_of(script, loop)):
            continue
        yield script.finding(
            "evaluation-padded",
            call,
            "gather() keeps the samples that Accelerate has repeated to give all ranks as many",
            why="they count twice in the metric",
            fix=f"{dotted(call.func).rpartition('.')[0]}.gather_for_metrics(...)",
            severity="hint",
        )


def _evaluation_loop_around(script: Script, call: ast.Call) -> ast.For | None:
    """Return the innermost loop over a loader around a call, if it evaluates."""
    for parent in script.up(call):
        # A gather in a loop that learns is about the loss, where repeated samples change little.
        if isinstance(parent, ast.For) and loaders.iterated(parent):
            evaluates = not loaders.learns(script, parent) and is_evaluation(script, parent)
            return parent if evaluates else None
    return None


def _evaluation_loaders(script: Script) -> set[str]:
    return {
        name.rpartition(".")[2]
        for name, values in script.values.items()
        if any("prepared" in kinds(script, value.value, value.at) for value in values)
    }


def _lightning_modules(script: Script) -> list[ast.ClassDef]:
    return [
        node
        for node in script.classes.values()
        if any(
            script.full(base).partition(".")[0] in LIGHTNING and last(base) == "LightningModule"
            for base in node.bases
        )
    ]


def _logged_without_sync(script: Script) -> Iterator[Finding]:
    """Find self.log without sync_dist in evaluation steps on several devices."""
    if not any(map(several, makes(script, "trainer"))):
        return
    # A metric object that is logged synchronises itself, and may be behind any name.
    if "torchmetrics" in " ".join(script.imports.values()):
        return
    parts = [part for module in _lightning_modules(script) for part in module.body]
    for part in parts:
        if not isinstance(part, Function) or part.name not in ("validation_step", "test_step"):
            continue
        call = next((node for node in inside(part) if _logs_own_mean(script, node)), None)
        if call is None:
            continue
        yield script.finding(
            "evaluation-not-reduced",
            call,
            "this metric is the mean of one rank's share: it is logged without sync_dist=True",
            why="each rank evaluates other samples, and rank 0's mean is reported for all",
            fix="self.log(..., sync_dist=True)",
        )


def _logs_own_mean(script: Script, node: ast.AST) -> bool:
    """Return whether a node logs a plain value of one rank as the mean of an epoch."""
    if not isinstance(node, ast.Call) or dotted(node.func) not in ("self.log", "self.log_dict"):
        return False
    # **options may hold sync_dist.
    if any(argument.arg in ("sync_dist", None) for argument in node.keywords):
        return False
    # In validation_step and test_step Lightning logs the mean of the epoch by default.
    return constant(keyword(node, "on_epoch")) is not False and _is_plain_value(script, node)


def _is_plain_value(script: Script, call: ast.Call) -> bool:
    """Return whether the logged value is computed here; a metric object reduces itself."""
    value = argument(call, "value", 1) if last(call) == "log" else argument(call, "dictionary", 0)
    if isinstance(value, ast.Name):
        values = script.assigned(value.id, call)
        return bool(values) and all(_is_computed(script, v.value) for v in values)
    return value is not None and _is_computed(script, value)


def _is_computed(script: Script, node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    is_function = script.full(node.func).startswith("torch.nn.functional")
    return is_function or last(node) in ("mean", "item")


def _trainer_pads(script: Script) -> Iterator[Finding]:
    trainers = makes(script, "trainer")
    if not trainers or not all(map(several, trainers)):
        return
    # Lightning shards the loaders with a DistributedSampler, which repeats samples; only predict()
    # gets a sampler that does not.
    samplers = [constant(keyword(trainer, "use_distributed_sampler")) for trainer in trainers]
    if any(sampler is False for sampler in samplers):
        return
    for call in script.calls_of("test"):
        if not isinstance(call.func, ast.Attribute):
            continue
        if "trainer" not in kinds(script, call.func.value, call):
            continue
        yield script.finding(
            "evaluation-padded",
            call,
            "this test runs on several devices, where Lightning repeats samples to fill each share",
            why="repeated samples count twice, and the figures depend on the number of devices",
            fix="Trainer(devices=1, num_nodes=1).test(...) for figures that are to be exact",
            severity="hint",
        )
