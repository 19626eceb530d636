"""Check metrics of a distributed evaluation: those of one rank only, and padded samples counted
twice.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.diagnose.lint.python import loaders
from paceline.diagnose.lint.python.collective_calls import several
from paceline.diagnose.lint.python.evaluation_loops import (
    Evaluation,
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
    r"|synchroni[sz]e|sync_(dist|between)|^sync$|aggregate|^compute(_on)?$|average_across|mean_across|to_global|collect",
    re.I,
)
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
        if (
            not evaluation.padded
            or not reduces(script, evaluation.around)
            or _trims(evaluation.around)
        ):
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
    """Return whether any of the nodes calls a function that, by its name, combines the values of
    the ranks.
    """
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        name = last(node)
        full = script.full(node.func)
        if full in (
            "functools.reduce",
            "torch.gather",
            "torch.cuda.synchronize",
        ) or _NOT_REDUCING.search(name):
            continue
        if name == "synchronize" and not full.startswith("accelerate"):
            continue
        if _REDUCES.search(name):
            return True
    return bool(script.roots & {"torchmetrics", "ignite", "evaluate"})


def _reported(script: Script, evaluation: Evaluation) -> ast.AST | None:
    """Return the call that prints or logs the metric, or the statement that returns it."""
    loop = evaluation.loop
    function = script.function(loop)
    for node in inside(function or script.tree):
        if (
            not isinstance(node, ast.Call)
            or node.lineno <= loop.lineno
            or not _REPORTS.search(last(node))
        ):
            continue
        if _shows_value(node) and not any(parent is loop for parent in script.up(node)):
            return node
    if function is None:
        return None
    if all(
        isinstance(script.parents.get(call), ast.Expr) for call in script.calls_of(function.name)
    ):
        return None  # nothing uses what the function returns
    returns = [
        node for node in inside(function) if isinstance(node, ast.Return) and node.value is not None
    ]
    return next((node for node in returns if node.lineno > loop.lineno), None)


def _shows_value(call: ast.Call) -> bool:
    return any(
        isinstance(n, ast.Name | ast.Attribute)
        for a in call.args
        for n in ast.walk(a)
        if n is not call.func
    )


def _trims(nodes: list[ast.AST]) -> bool:
    """Return whether repeated samples are removed: a slice up to the length of the data, or a
    sample count.
    """
    for node in nodes:
        if (
            isinstance(node, ast.Slice)
            and node.upper is not None
            and "dataset" in ast.dump(node.upper)
        ):
            return True
        if isinstance(node, ast.Name | ast.Attribute) and _TRIMS.search(last(node)):
            return True
    return False


def _gathered_with_padding(script: Script) -> Iterator[Finding]:
    """Find calls of Accelerate's plain gather, which keeps the samples that even_batches
    repeats.
    """
    if "accelerate" not in script.roots:
        return
    prepared = _evaluation_loaders(script)
    for call in script.calls_of("gather"):
        if not isinstance(call.func, ast.Attribute) or "accelerator" not in kinds(
            script, call.func.value, call
        ):
            continue
        loop = next(
            (p for p in script.up(call) if isinstance(p, ast.For) and loaders.iterated(p)), None
        )
        if loop is None or loaders.learns(script, loop) or not is_evaluation(script, loop):
            continue
        if loaders.iterated(loop).rpartition(".")[2] not in prepared or _trims(
            around_of(script, loop)
        ):
            continue
        yield script.finding(
            "evaluation-padded",
            call,
            "gather() keeps the samples that Accelerate has repeated to give all ranks as many",
            why="they count twice in the metric",
            fix=f"{dotted(call.func).rpartition('.')[0]}.gather_for_metrics(...)",
            severity="hint",
        )


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


def _trainers(script: Script) -> list[ast.Call]:
    return [call for call in makes(script, "trainer") if several(call)]


def _logged_without_sync(script: Script) -> Iterator[Finding]:
    """Find self.log without sync_dist in evaluation steps on several devices, which reports rank
    0's mean.
    """
    if not _trainers(script) or script.roots & {"torchmetrics"}:
        return
    for module in _lightning_modules(script):
        if "torchmetrics" in " ".join(script.imports.values()):
            return
        for part in module.body:
            if not isinstance(part, Function) or part.name not in ("validation_step", "test_step"):
                continue
            for call in inside(part):
                if not isinstance(call, ast.Call) or dotted(call.func) not in (
                    "self.log",
                    "self.log_dict",
                ):
                    continue
                if keyword(call, "sync_dist") is not None or any(
                    k.arg is None for k in call.keywords
                ):
                    continue
                if constant(keyword(call, "on_epoch")) is False or not _is_plain_value(
                    script, call
                ):
                    continue
                yield script.finding(
                    "evaluation-not-reduced",
                    call,
                    "this metric is the mean of one rank's share: it is logged without"
                    " sync_dist=True",
                    why="each rank evaluates other samples, and rank 0's mean is reported for all",
                    fix="self.log(..., sync_dist=True)",
                )
                break


def _is_plain_value(script: Script, call: ast.Call) -> bool:
    """Return whether the logged value is computed here; a metric object reduces itself."""
    value = argument(call, "value", 1) if last(call) == "log" else argument(call, "dictionary", 0)
    if isinstance(value, ast.Name):
        values = script.assigned(value.id, call)
        return bool(values) and all(_is_computed(script, v.value) for v in values)
    return value is not None and _is_computed(script, value)


def _is_computed(script: Script, node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return script.full(node.func).startswith("torch.nn.functional") or last(node) in (
            "mean",
            "item",
        )
    return False


def _trainer_pads(script: Script) -> Iterator[Finding]:
    for call in script.calls:
        if last(call) != "test" or not isinstance(call.func, ast.Attribute):
            continue
        if "trainer" not in kinds(script, call.func.value, call):
            continue
        trainers = makes(script, "trainer")
        if not trainers or not all(several(trainer) for trainer in trainers):
            continue
        if any(
            constant(keyword(trainer, "use_distributed_sampler")) is False for trainer in trainers
        ):
            continue
        yield script.finding(
            "evaluation-padded",
            call,
            "this test runs on several devices, where Lightning repeats samples to fill each share",
            why="repeated samples count twice, and the figures depend on the number of devices",
            fix="Trainer(devices=1, num_nodes=1).test(...) for figures that are to be exact",
            severity="hint",
        )
