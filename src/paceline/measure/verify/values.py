"""Decide whether the values of several ranks are those of one process, for any parallelism. Pure.

Steps are compared in order, and within a step what comes first: parameters, inputs, outputs of
modules, gradients, updates. A fault is what changes gradients, updates or parameters: a module may
well return a part that its caller adds up. Its cause is looked for among what has come before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from paceline.errors import Finding
from paceline.measure.verify import replicas, value_findings
from paceline.measure.verify.recorded_values import (
    Compared,
    Period,
    RecordedCall,
    Sums,
    compare,
)
from paceline.measure.verify.records import (
    ComparisonVerdict,
    RecordedWorld,
    broken,
    kept,
    not_judged,
)

_DOUBLE, _SINGLE = 1e-9, 5e-5  # relative differences that are allowed in these types
_COARSER = 8.0  # of coarser types, as a multiple of their precision
_UPDATES = 2e-2  # of updates: an optimizer may divide by a small gradient, or round (torch's Muon)
_DRIFT = 10.0  # how much more than parameters that have drifted apart what they compute may differ
_FLOOR = 0.1  # of the usual gradient: rounding makes one where the true one is 0
_NOISE = 1e-3  # of the usual gradient; an optimizer that normalises makes anything of less


@dataclass
class _History:
    """What the steps before a step have left behind."""

    noise: set[str] = field(default_factory=set)  # parameters whose gradients are rounding only
    # sum of the differences that updates may have made, by parameter
    slack: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Step:
    """A period on several ranks and on one."""

    number: int
    ranks: tuple[Period, ...]
    one: Period
    name: str  # of the several ranks
    drift: float = 0.0  # relative difference of parameters that rounding has made before

    @property
    def allowed(self) -> float:
        """The relative difference that rounding may make."""
        precision = max([self.one.precision, *(rank.precision for rank in self.ranks)])
        if precision < 1e-12:
            base = _DOUBLE
        else:
            base = max(_SINGLE, _COARSER * precision if precision > 1e-6 else 0.0)
        return base * self.number + _DRIFT * self.drift

    @property
    def place(self) -> str:
        """The line that makes the step."""
        return self.ranks[0].place

    @property
    def is_idle(self) -> bool:
        """Whether the last backward has changed no gradient, on no rank."""
        return all(rank.is_idle for rank in self.ranks)

    def finding(
        self,
        kind: str,
        name: str,
        wrong: Sequence[Compared] = (),
        *,
        place: str = "",
        **words: object,
    ) -> Finding:
        """Return what is said of a difference in this step."""
        place = place or self.place
        return value_findings.finding(
            kind, name, step=self.number, ranks=self.name, place=place, wrong=wrong, **words
        )

    def compared(self, kind: str, *, floor: float = 0.0) -> list[Compared]:
        """Return the tensors of a kind that can be compared, in the order of the forward."""
        tables: list[Mapping[str, Sums]] = [getattr(rank, kind) for rank in self.ranks]
        expected: Mapping[str, Sums] = getattr(self.one, kind)
        pairs = [
            compare(name, [t[name] for t in tables if name in t], expected[name], floor=floor)
            for name in self.in_order(expected)
        ]
        return [pair for pair in pairs if pair is not None]

    def in_order(self, names: Iterable[str]) -> list[str]:
        """Return parameters in the order in which the forward reaches their modules."""
        places = {call.name: place for place, call in enumerate(self.one.calls)}
        return sorted(names, key=lambda name: places.get(_owner(name), -1))


def judge_updates(world: RecordedWorld, one: RecordedWorld) -> ComparisonVerdict:
    """Decide whether what ranks apply to their parameters is what one process applies."""
    steps = _steps(world, one)
    if not steps:
        return not_judged("no optimizer step was seen")
    idle = next((step for step in steps if step.is_idle), None)
    if idle is not None:
        return broken(idle.finding("idle", idle.in_order(idle.one.parameters)[-1]))
    if not one.is_repeatable:
        return not_judged("1 rank comes to other values when it runs again")
    history = _History()
    for step in steps:
        verdict = _judge_step(world, one, step, history)
        if verdict is not None:
            return verdict
    return kept(f"parameters, gradients and updates of {len(steps)} steps agree")


def judge_loss(world: RecordedWorld, one: RecordedWorld) -> ComparisonVerdict:
    """Decide whether the first loss, over all ranks, is that on one rank."""
    steps = _steps(world, one)
    if not steps:
        return not_judged("no optimizer step was seen")
    verdict = judge_updates(world, one)
    if verdict.finding is not None and verdict.finding.name == "loss-differs":
        return verdict
    step = steps[0]
    begin = _judge_parameters(step, _History()) or _judge_inputs(step)
    if begin is not None:
        return not_judged(begin.reason)
    if not step.one.loss or not all(rank.loss and rank.loss[0] for rank in step.ranks):
        return not_judged("no loss was seen")
    losses = _mean([rank.loss for rank in step.ranks])
    expected = _mean([step.one.loss])
    if _is_same_loss(step):
        return kept(f"loss of the first step: {expected:.6g}")
    return not_judged(f"it is {losses:.6g}, on 1 rank {expected:.6g}; gradients decide")


def _steps(world: RecordedWorld, one: RecordedWorld) -> list[_Step]:
    if not world.values or not one.values:
        return []
    common = set.intersection(*(set(rank) for rank in (*world.values, one.values[0])))
    return [
        _Step(n, tuple(rank[n] for rank in world.values), one.values[0][n], world.name)
        for n in sorted(common)
        if one.values[0][n].parameters
    ]


def _judge_step(
    world: RecordedWorld, one: RecordedWorld, step: _Step, history: _History
) -> ComparisonVerdict | None:
    """Decide about a step; None if it is right."""
    verdict = _judge_parameters(step, history) or _judge_inputs(step)
    if verdict is not None:
        return verdict
    drifts = [each.error for each in step.compared("parameters") if each.name not in history.noise]
    step = replace(step, drift=max(drifts, default=0.0))
    usual = _usual(step.one.gradients)
    gradients = step.compared("gradients", floor=_FLOOR * usual)
    history.noise |= {
        name for name, sums in step.one.gradients.items() if sums[2] < _NOISE * usual * sums[0]
    }
    wrong = [each for each in gradients if each.error > step.allowed]
    if wrong:
        return _judge_gradients(world, one, step, gradients, wrong)
    rates = {tuple(rank.rates) for rank in step.ranks}
    if len(rates) == 1 and not _is_same_rate(step.ranks[0].rates, step.one.rates):
        return kept(f"gradients of {step.number} steps agree; the learning rate is another one")
    updates = [
        each
        for each in step.compared("updates")
        if each.name not in history.noise and each.error > _allowed_of_update(step, each.name)
    ]
    for name, sums in step.one.updates.items():
        slack = _allowed_of_update(step, name) * sums[2]
        history.slack[name] = history.slack.get(name, 0.0) + slack
    return broken(step.finding("update", updates[0].name, updates)) if updates else None


def _is_same_rate(rates: Sequence[float], expected: Sequence[float]) -> bool:
    pairs = zip(rates, expected, strict=False)
    return all(math.isclose(rate, other, rel_tol=1e-6) for rate, other in pairs)


def _usual(gradients: Mapping[str, Sums]) -> float:
    """Return the root of the mean square of all values."""
    number = sum(sums[0] for sums in gradients.values())
    return math.sqrt(sum(sums[3] for sums in gradients.values()) / number) if number else 0.0


def _allowed_of_update(step: _Step, name: str) -> float:
    """Return the relative difference allowed in an update, which is rounded as its parameter is."""
    update, parameter = step.one.updates[name], step.one.parameters.get(name)
    rounding = 0.0
    if parameter and update[2]:
        rounding = 4 * step.one.precision * parameter[2] / update[2]
    return min(0.5, max(_UPDATES, 50 * step.allowed)) + rounding


# What a step begins with


def _judge_parameters(step: _Step, history: _History) -> ComparisonVerdict | None:
    def is_wrong(each: Compared, name: str) -> bool:
        slack = history.slack.get(name, 0.0) * each.copies / (each.expected[2] or 1.0)
        return each.error > step.allowed + slack and name not in history.noise

    wrong = [each for each in step.compared("parameters") if is_wrong(each, each.name)]
    if step.number == 1:
        return _judge_start(step, wrong) if wrong else None
    copies = [
        each for each in step.compared("copies") if is_wrong(each, each.name.partition(": ")[2])
    ]
    if wrong:
        return broken(step.finding("changed", wrong[0].name, wrong))
    if not copies:
        return None
    copy, _, name = copies[0].name.partition(": ")
    return broken(step.finding("copy", name, [replace(copies[0], name=name)], copy=copy))


def _judge_start(step: _Step, wrong: Sequence[Compared]) -> ComparisonVerdict:
    """Decide about other values at the start: ranks must agree in what they hold alike."""
    first = wrong[0]
    whole = step.one.parameters[first.name]
    sums = [rank.parameters[first.name] for rank in step.ranks if first.name in rank.parameters]
    is_one_model = any(not each.is_whole for each in step.compared("parameters"))
    if not first.are_copies and (is_one_model or _is_averaged(step, first.name)):
        return broken(step.finding("start", first.name, wrong))
    is_repeated = not first.is_whole and len(set(sums)) * sums[0][0] < whole[0]
    if is_repeated:
        return broken(step.finding("equal parts", first.name, wrong))
    return not_judged("training begins with other parameters than on 1 rank: set a seed")


def _is_averaged(step: _Step, name: str) -> bool:
    """Return whether ranks apply the same gradient: those that train apart apply their own."""
    return len({rank.gradients.get(name) for rank in step.ranks}) == 1


def _judge_inputs(step: _Step) -> ComparisonVerdict | None:
    """Decide whether ranks together compute what one process computes; None if they do."""
    if step.one.is_random or any(rank.is_random for rank in step.ranks):
        return not_judged("the forward draws random numbers, on each rank its own")
    if not step.one.inputs:
        return not_judged("no forward of a module was seen; torch.compile hides them")
    name = next(iter(step.one.inputs))
    ranks = [rank.inputs[name] for rank in step.ranks if name in rank.inputs]
    if len(ranks) < len(step.ranks):
        return not_judged("modules are called in another order than on 1 rank")
    expected = step.one.inputs[name]
    compared = compare(name, ranks, expected)
    if compared is not None and compared.error <= step.allowed:
        return None
    if not expected[0]:
        return _judge_unseen(step)
    place = step.ranks[0].calls[0].place if step.ranks[0].calls else ""
    distinct = len(set(ranks)) * ranks[0][0]
    if step.number == 1 and distinct < expected[0] * (1 - 1e-9) and _are_equal_sized(ranks):
        return broken(step.finding("same rows", name, place=place, distinct=len(set(ranks))))
    module = _divided_module(step, distinct / expected[0])
    if module is not None:
        return broken(step.finding("other rows", module, place=place))
    if step.number > 1:
        return kept(f"values of {step.number - 1} steps agree; then ranks read other samples")
    return not_judged(_other_samples(ranks, expected))


def _divided_module(step: _Step, growth: float) -> str | None:
    """Return a module that ranks compute in parts, though the inputs of the parts are not one.

    With ``growth`` times the rows of one process its output has that many times the values, unless
    ranks share it out.
    """
    parameters = {_owner(c.name): c for c in step.compared("parameters")}
    for call in step.one.calls:
        own = parameters.get(call.name)
        number = sum(c.sums[0] for rank in step.ranks for c in rank.calls if c.name == call.name)
        copies = number / call.sums[0] if call.sums[0] else 0.0
        is_divided = own is not None and not own.is_whole and copies == round(copies) >= 1
        if is_divided and copies < growth * (1 - 1e-9):
            return call.name
    return None


def _judge_unseen(step: _Step) -> ComparisonVerdict | None:
    """Decide by the first outputs, where the inputs of the model are no arguments by position."""
    errors = _errors_of_outputs(step)
    inner = {call.parent for call in step.one.calls}
    first = next((c.name for c in step.one.calls if c.name in errors and c.name not in inner), None)
    if first is None or errors[first] <= step.allowed:
        return None
    return not_judged(f"what goes into the model is not seen, and {first} differs already")


def _other_samples(ranks: Sequence[Sums], expected: Sums) -> str:
    growth = sum(sums[0] for sums in ranks) / expected[0]
    if growth > 1:
        return f"a step has {growth:.3g} times the samples of 1 rank: give --batch-option"
    return "the first batch has other samples than on 1 rank, or other values of them"


def _are_equal_sized(ranks: Sequence[Sums]) -> bool:
    return len({sums[0] for sums in ranks}) == 1


# Gradients that differ, and what comes before them


def _judge_gradients(
    world: RecordedWorld,
    one: RecordedWorld,
    step: _Step,
    gradients: Sequence[Compared],
    wrong: Sequence[Compared],
) -> ComparisonVerdict | None:
    if _are_uneven(step):
        return not_judged("ranks have other numbers of samples in this step")
    module = blamed_module(step)
    if module is not None and "BatchNorm" in module.type and "Sync" not in module.type:
        return not_judged("a module has statistics of its batch, on each rank its own (BatchNorm)")
    if module is not None:
        return broken(_output_finding(step, module))
    is_all = len(wrong) == len(gradients)
    if is_all and all(each.is_whole and each.is_mean for each in wrong):
        return not_judged("ranks apply different gradients: they may train apart")
    factors = [each.factor for each in wrong]
    is_one_factor = max(factors) - min(factors) <= 1e-2 * max(factors)
    if is_all and is_one_factor and all(each.is_scaled for each in wrong):
        if _is_undone(world, one, factors[0]):
            return kept(f"gradients are {factors[0]:.3g} times those on 1 rank; the rate undoes it")
        return broken(step.finding("factor", wrong[-1].name, wrong, factor=factors[0]))
    if not _is_same_loss(step):
        loss, expected = _mean([rank.loss for rank in step.ranks]), _mean([step.one.loss])
        return broken(step.finding("loss", wrong[-1].name, wrong, loss=loss, expected=expected))
    causes = _causes(step, wrong)
    counts = f"{len(wrong)} of {len(gradients)}"
    return broken(step.finding("gradient", causes[-1].name, causes, counts=counts))


def _causes(step: _Step, wrong: Sequence[Compared]) -> Sequence[Compared]:
    """Return the gradients that were wrong first: clipping by their norm changes all others too."""
    raw = step.compared("raw", floor=_FLOOR * _usual(step.one.raw))
    wrong_after_backward = {each.name for each in raw if each.error > step.allowed}
    if 0 < len(wrong_after_backward) < len(raw):
        return [each for each in wrong if each.name in wrong_after_backward] or wrong
    others = [each for each in wrong if not each.is_scaled]
    return others or wrong


def _are_uneven(step: _Step) -> bool:
    inputs = [next(iter(rank.inputs.values()), ()) for rank in step.ranks]
    return len({sums[0] for sums in inputs if sums}) > 1


def _is_undone(world: RecordedWorld, one: RecordedWorld, factor: float) -> bool:
    """Return whether a learning rate makes up for the factor of the gradients."""
    training, reference = replicas.main_training(world), replicas.main_training(one)
    if training is None or reference is None or not training[0].steps or not reference[0].steps:
        return False
    pairs = zip(training[0].steps[0].rates, reference[0].steps[0].rates, strict=False)
    return all(math.isclose(factor * rate, other, rel_tol=0.01) for rate, other in pairs)


def _is_same_loss(step: _Step) -> bool:
    """Return whether the loss over all ranks is a mean or a sum like that on one rank."""
    losses, expected = [rank.loss for rank in step.ranks], step.one.loss
    if not expected or not expected[0] or not all(losses):
        return True
    number, total = (sum(loss[place] for loss in losses) for place in (0, 1))
    candidates = (total, total / len(losses))
    is_mean = number and _is_near(total / number, expected[1] / expected[0], step)
    return bool(is_mean) or any(_is_near(value, expected[1], step) for value in candidates)


def _is_near(value: float, expected: float, step: _Step) -> bool:
    return math.isclose(value, expected, rel_tol=10 * step.allowed, abs_tol=1e-12)


def blamed_module(step: _Step) -> RecordedCall | None:
    """Return the innermost module from which on outputs differ; None if that of the model is right.

    A module whose output differs is excused by a later one, called by the same module, that is
    right: what it has returned was added up between them.
    """
    errors, of_inputs = _errors_of_outputs(step), _errors_of_outputs(step, "inputs")
    blamed, caller = None, ""
    while True:
        inner = [call for call in step.one.calls if call.parent == caller and call.name in errors]
        wrong: list[RecordedCall] = []
        for call in inner:
            wrong = [*wrong, call] if errors[call.name] > step.allowed else []
        is_before = bool(wrong) and of_inputs.get(wrong[0].name, 0.0) > step.allowed
        if not wrong or (is_before and blamed is not None):  # its caller gives it other values
            return blamed
        blamed, caller = wrong[0], wrong[0].name


def _errors_of_outputs(step: _Step, kind: str = "sums") -> dict[str, float]:
    """Return the relative difference of each module's outputs, or ``inputs``, where it is known."""
    ranks = [{call.name: getattr(call, kind) for call in rank.calls} for rank in step.ranks]
    errors = {}
    for call in step.one.calls:
        parts = [sums[call.name] for sums in ranks if call.name in sums]
        compared = compare(call.name, parts, getattr(call, kind))
        if compared is not None and parts[0][0] > 1:
            errors[call.name] = compared.error
    return errors


def _output_finding(step: _Step, module: RecordedCall) -> Finding:
    """Return the finding about a module, or about its own parameter if inner modules are right."""
    parts = [call.sums for rank in step.ranks for call in rank.calls if call.name == module.name]
    compared = compare(module.name, parts, module.sums)
    assert compared is not None
    is_inner = any(name.startswith(f"{module.name}.") for name in step.one.parameters)
    path = module.name if is_inner else ""  # that of the model itself has no name
    buffers = [each.name for each in step.compared("buffers") if each.error > step.allowed]
    own = [name for name in (*buffers, *step.one.parameters) if _owner(name) == path]
    is_outer = any(call.parent == module.name for call in step.one.calls)
    name = own[0] if own and is_outer else module.name
    return step.finding(
        "output",
        name,
        [replace(compared, name=name)],
        place=module.place,
        module=f"{module.name} ({module.type})",
    )


def _owner(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _mean(losses: Sequence[Sums]) -> float:
    number = sum(loss[0] for loss in losses)
    return sum(loss[1] for loss in losses) / number if number else 0.0
