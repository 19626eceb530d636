"""Run ``paceline verify``: start the script on each number of ranks, compare, print the result."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from paceline import env
from paceline.errors import (
    EXIT_FAILED,
    EXIT_OK,
    Finding,
    RunError,
    gravest_first,
    option_contradicted,
    option_invalid,
)
from paceline.launch.plan import script
from paceline.launch.plan.options import Options
from paceline.machine import gpus
from paceline.measure import files_as_before, proof, trial
from paceline.measure.bench import (
    EXAMPLE,
    PER_RANK,
    BenchRequest,
    batch_unknown,
    check_division,
    no_effect,
)
from paceline.measure.trial import Say, Trial, TrialResult
from paceline.measure.verify import masks, rates, records, replicas, samples, values
from paceline.measure.verify.rates import batch_of
from paceline.measure.verify.records import (
    KEPT,
    NOT_JUDGED,
    PROVEN,
    ComparisonVerdict,
    RecordedWorld,
    broken,
    not_judged,
)
from paceline.measure.verify.replicas import main_training
from paceline.rundir import files, proofs
from paceline.rundir.files import RunDir
from paceline.rundir.proofs import Proof
from paceline.text import terminal
from paceline.text.json_text import print_json
from paceline.text.wording import aligned, fold, named
from paceline.train import checkpoint


@dataclass(frozen=True)
class VerifyResult:
    """What was compared."""

    script: str  # the script
    worlds: tuple[int, ...]  # numbers of ranks that have run
    steps: dict[int, int]  # optimizer steps that each has made, by number of ranks
    properties: Sequence[Property]  # the properties
    read: Sequence[str]  # how much each rank has read in each epoch, in lines
    findings: Sequence[Finding]  # what is wrong with them
    failures: Sequence[Finding]  # why numbers of ranks could not be run
    folder: str  # the folder with the records
    note: str = ""  # where the trials ran, if not where the script would

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "script": self.script,
            "worlds": list(self.worlds),
            "steps": {str(size): steps for size, steps in self.steps.items()},
            "properties": [
                {
                    "name": one_property.name,
                    "worlds": {
                        str(size): verdict.to_json()
                        for size, verdict in one_property.verdicts.items()
                    },
                }
                for one_property in self.properties
            ],
            "read": list(self.read),
            "findings": [finding.to_json() for finding in self.findings],
            "failures": [finding.to_json() for finding in self.failures],
            "folder": self.folder,
            "note": self.note,
        }


def render(result: VerifyResult) -> str:
    """Return the result as text."""
    steps = ", ".join(f"{result.steps[size]:,} on {_ranks(size)}" for size in result.worlds)
    blocks = [f"{result.script}: optimizer steps compared: {steps}"]
    if result.note:
        blocks.append(f"note: {result.note}")
    blocks.append("\n".join(_table(result)))
    blocks += ["\n".join(lines) for lines in (result.read, _reasons(result)) if lines]
    blocks += [finding.render() for finding in gravest_first(result.findings)]
    blocks += [finding.render() for finding in result.failures]
    blocks.append(_sum(result))
    return "\n\n".join(blocks)


def _ranks(size: int) -> str:
    return "1 rank" if size == 1 else f"{size} ranks"


def _table(result: VerifyResult) -> list[str]:
    columns = ["property", *map(_ranks, result.worlds)]
    rows = [
        [
            one_property.title,
            *(
                one_property.verdicts[size].state if size in one_property.verdicts else "-"
                for size in result.worlds
            ),
        ]
        for one_property in result.properties
    ]
    return aligned(columns, rows)


def _reasons(result: VerifyResult) -> list[str]:
    """Return why properties could not be judged, each reason once."""
    lines = []
    for one_property in result.properties:
        reasons: dict[str, list[int]] = {}
        for size, verdict in one_property.verdicts.items():
            if verdict.state == NOT_JUDGED:
                reasons.setdefault(verdict.reason, []).append(size)
        for reason, sizes in reasons.items():
            where = "" if len(sizes) == len(one_property.verdicts) else f", {_list(sizes)}"
            lines.append(f"not judged: {one_property.title}{where}: {reason}")
    return lines


def _list(sizes: Sequence[int]) -> str:
    return " and ".join(map(_ranks, sizes))


def _sum(result: VerifyResult) -> str:
    states = [
        verdict.state
        for one_property in result.properties
        for verdict in one_property.verdicts.values()
    ]
    counts = {state: states.count(state) for state in dict.fromkeys(states)}
    words = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
    return f"{words or 'nothing was compared'} · records: {result.folder}"


# A trial that ends before its last step has still shown something.
_OF_USE = ("trial-too-short", "trial-without-steps")
_LATER_S = 2.0  # the proof may take that much more than twice as long as the first trial


@dataclass
class Runs:
    """The trials of a script."""

    # what the ranks have recorded, by number of ranks
    worlds: dict[int, RecordedWorld] = field(default_factory=dict)
    failures: list[Finding] = field(default_factory=list)  # why numbers of ranks could not be run
    # what was said of trials that ended early. They have still shown something.
    cut_short: list[Finding] = field(default_factory=list)


class _TooLongError(Exception):
    """The trials have ended, and the proof is not waited for."""


class _Proof(threading.Thread):
    """The proof of the loss: another start of the script, beside the trials."""

    def __init__(self, requested: BenchRequest, text: str, folder: Path) -> None:
        super().__init__(daemon=True)  # Ctrl-C ends the command, though this one waits
        options = Options(
            script=requested.command[0],
            script_args=requested.command[1:],
            module=requested.is_module,
            typed=(("module", "true"),) if requested.is_module else (),
        )
        self._ask = functools.partial(proof.ask, options, text, folder, tick=self._require_wanted)
        self._is_wanted = True
        self._result = proofs.Proof(proofs.NOT_JUDGED, "it takes longer than the trials")
        self.start()

    def run(self) -> None:
        """Start the script; return when it has ended."""
        with contextlib.suppress(_TooLongError):
            self._result, _ = self._ask()

    def _require_wanted(self) -> None:
        if not self._is_wanted:
            raise _TooLongError

    def end(self) -> proofs.Proof:
        """End the script, if it still runs; return the result."""
        self._is_wanted = False
        self.join()
        return self._result


@files_as_before.keeping()
def verify(requested: BenchRequest, *, as_json: bool, is_apart: bool = False) -> int:
    """Run the script on each number of ranks, print what was compared, and return the exit status.

    ``scaling`` is ``"strong"`` if the request has a ``batch_option``; with ``is_apart`` ranks train
    apart on purpose. Raises UsageError if the request cannot be carried out, or the script does not
    follow ``--batch-option``; SetupError if the run folder cannot be written; RunError if the
    script has run on no number of ranks, or nothing could be compared and it made no optimizer
    step.
    """
    # First of all, so that a script that cannot be read leaves no folder behind.
    text = script.read(Options(script=requested.command[0], module=requested.is_module))
    if requested.global_batch is not None:
        check_division(requested, requested.global_batch)
    root = trial.new_folder("verify", requested.command[0], requested.run_dir)
    num_gpus, _ = gpus.count(env.visible_devices())
    is_on_cpus = 0 < num_gpus < max(requested.worlds)
    variables = {env.VERIFY: "1", **({env.CUDA_DEVICES: ""} if is_on_cpus else {})}
    with trial.progress(len(requested.worlds)) as say:
        proven = _Proof(requested, text, root / "proof")
        try:
            runs = _run(requested, root / "trials", say, proven, variables)
        finally:
            shown = proven.end()
    if not runs.worlds:
        raise RunError(runs.failures[0])
    worlds = {size: replace(world, is_apart=is_apart) for size, world in runs.worlds.items()}
    properties = judge(worlds, shown)
    if 1 in worlds and _accuses_values(properties):
        again = _again(requested, root / "trials", variables)
        is_repeatable = again is not None and values.judge_updates(again, worlds[1]).state == KEPT
        worlds[1] = replace(worlds[1], is_repeatable=is_repeatable)
        properties = judge(worlds, shown)
    _require_something(runs, properties)
    result = VerifyResult(
        script=requested.command[0],
        worlds=tuple(sorted(runs.worlds)),
        steps={size: _num_steps(world) for size, world in runs.worlds.items()},
        properties=properties,
        read=[line for _, world in sorted(runs.worlds.items()) for line in read_by(world)],
        findings=findings_of(properties),
        failures=runs.failures,
        folder=files.display_path(root),
        note=f"trials ran on CPUs: more ranks than GPUs ({num_gpus})" if is_on_cpus else "",
    )
    if as_json:
        print_json(result)
    else:
        terminal.show(render(result))
    # A hint is advice: with one alone the script does on several ranks what it does on one.
    is_broken = any(finding.severity != "hint" for finding in result.findings)
    return EXIT_FAILED if is_broken or result.failures else EXIT_OK


def _run(
    requested: BenchRequest, folder: Path, say: Say, proven: _Proof, variables: Mapping[str, str]
) -> Runs:
    """Run all trials, the smallest number of ranks first: its batch is that of the others.

    What fails beside a proof that does not is repeated alone: both may need a port, a file, or the
    memory of a GPU.
    """
    runs, began_s = Runs(), time.monotonic()
    for size in requested.worlds:
        one, tick = _trial(requested, size, folder, variables), say(_ranks(size))
        is_beside = proven.is_alive()
        ended = trial.run(one, tick)
        proven.join(_LATER_S + time.monotonic() - began_s)  # no rank of the next may meet it
        if proven.end().reason != proof.FAILED and _is_of_no_use(ended) and is_beside:
            one = replace(one, run_dir=one.run_dir.with_name(f"{one.run_dir.name}-again"))
            ended = trial.run(one, tick)
        # Of a few steps, for nobody, and as large as the model.
        checkpoint.remove(RunDir(one.run_dir).checkpoints)
        if ended.finding is not None and _is_of_no_use(ended):
            runs.failures.append(ended.finding)
            continue
        if ended.finding is not None:
            runs.cut_short.append(ended.finding)
        world = records.read(RunDir(one.run_dir), size, ended.launcher_findings)
        runs.worlds[size] = world
        if size == 1:
            variables = {**variables, env.VERIFY: str(RunDir(one.run_dir).values(0).absolute())}
        if requested.batch_option:
            requested = _with_batch(requested, world)
    return runs


def _accuses_values(properties: Sequence[Property]) -> bool:
    return any(
        verdict.finding is not None
        for one_property in properties
        if one_property.name == "updates"
        for verdict in one_property.verdicts.values()
    )


def _again(
    requested: BenchRequest, folder: Path, variables: Mapping[str, str]
) -> RecordedWorld | None:
    """Run 1 rank again: only values that it repeats can accuse others. None if it fails."""
    one = _trial(requested, 1, folder, variables)
    one = replace(one, run_dir=one.run_dir.with_name("1-rank-repeated"))
    ended = trial.run(one)
    checkpoint.remove(RunDir(one.run_dir).checkpoints)
    return None if _is_of_no_use(ended) else records.read(RunDir(one.run_dir), 1)


def _is_of_no_use(ended: TrialResult) -> bool:
    return ended.finding is not None and ended.finding.name not in _OF_USE


def _trial(requested: BenchRequest, size: int, folder: Path, variables: Mapping[str, str]) -> Trial:
    return Trial(
        command=requested.command_for(size, requested.global_batch),
        world_size=size,
        steps=requested.steps,
        run_dir=folder / f"{size}-rank{'' if size == 1 else 's'}",
        options=requested.options,
        variables=variables,
        timeout_s=requested.timeout_s,
    )


def _with_batch(requested: BenchRequest, world: RecordedWorld) -> BenchRequest:
    """Return the request with the global batch of its first trial, which the others must have.

    Raises UsageError if the batch is unknown, cannot be divided, or does not follow the option.
    """
    measured, expected = batch_of(world), requested.global_batch
    if not measured:
        raise batch_unknown()
    if expected is None:
        check_division(requested, measured)
        return replace(requested, global_batch=measured)
    if measured != expected:
        raise no_effect(requested, world.size, measured=measured, expected=expected)
    return requested


def _require_something(runs: Runs, properties: Sequence[Property]) -> None:
    """Refuse a result in which nothing was trained or judged: it looks like a success."""
    verdicts = [verdict for compared in properties for verdict in compared.verdicts.values()]
    is_nothing_judged = {verdict.state for verdict in verdicts} == {NOT_JUDGED}
    has_trained = any(_num_steps(world) for world in runs.worlds.values())
    if is_nothing_judged and not has_trained and runs.cut_short and not runs.failures:
        raise RunError(runs.cut_short[0])


def read_by(world: RecordedWorld) -> list[str]:
    """Return how much each rank has read in each epoch; epochs that are alike share a line."""
    epochs_of: dict[str, list[int]] = {}
    for number, loops in enumerate(zip_longest(*(rank.epochs for rank in world.ranks)), 1):
        ranks_of: dict[str, list[int]] = {}
        for rank, loop in enumerate(loops):
            ranks_of.setdefault(loop.amount if loop else "nothing", []).append(rank)
        parts = [f"{named(ranks)}: {amount}" for amount, ranks in ranks_of.items()]
        epochs_of.setdefault("; ".join(parts), []).append(number)
    return [f"{world.name}, epoch {fold(epochs)}: {text}" for text, epochs in epochs_of.items()]


def _num_steps(world: RecordedWorld) -> int:
    """Return the steps of the optimizer that made most."""
    training = main_training(world)
    return len(training[0].steps) if training is not None else 0


def require_batch_option(option: str, global_batch: int | None) -> None:
    """Check the options for the batch.

    Raises UsageError if the option has no place for the batch of a rank, or the batch has no
    option.
    """
    if global_batch is not None and not option:
        what = "--global-batch has no effect without --batch-option"
        raise option_contradicted(what, where="--global-batch", fix=EXAMPLE)
    if option and PER_RANK not in option:
        what = f"--batch-option {option!r} has no {PER_RANK}, where the batch of a rank goes"
        raise option_invalid(what, where="--batch-option", fix=EXAMPLE)


# All properties of a script on each number of ranks


@dataclass(frozen=True)
class Property:
    """A property of a script."""

    name: str  # its name in JSON
    title: str  # the same in words, for the table
    # what is known, by number of ranks; numbers that it does not apply to are left out
    verdicts: Mapping[int, ComparisonVerdict]


Judge = Callable[[RecordedWorld, RecordedWorld | None], ComparisonVerdict]


def judge(worlds: Mapping[int, RecordedWorld], proof: Proof) -> list[Property]:
    """Return the properties of a script, from what its ranks have recorded."""
    one = worlds.get(1)
    proven = Property("rows", "loss is a mean over rows", {min(worlds): _of_proof(proof)})
    return [proven] + [
        Property(name, title, _verdicts(worlds, one, function, applies_to_one))
        for name, title, function, applies_to_one in _PROPERTIES
    ]


def _of_proof(proof: Proof) -> ComparisonVerdict:
    if proof.finding is not None:
        return broken(Finding.from_json(proof.finding))
    if proof.state == proofs.PROVEN:
        return ComparisonVerdict(
            PROVEN, f"gradients of a batch are the mean of its parts ({proof.error:.0e})"
        )
    return not_judged(proof.reason)


def _verdicts(
    worlds: Mapping[int, RecordedWorld],
    one: RecordedWorld | None,
    function: Judge,
    applies_to_one: bool,
) -> dict[int, ComparisonVerdict]:
    sizes = [size for size in sorted(worlds) if size > 1 or applies_to_one]
    verdicts = {}
    for size in sizes:
        world = worlds[size]
        ranks = [*world.ranks, *(one.ranks if one is not None else ())]
        fault = next((rank.fault for rank in ranks if rank.fault), "")
        incomplete = not_judged(f"records are incomplete: {fault}")
        verdicts[size] = incomplete if fault else function(world, one)
    return verdicts


def _beside_one(function: Callable[[RecordedWorld, RecordedWorld], ComparisonVerdict]) -> Judge:
    """Return a judge that needs the records of one rank."""

    def compared(world: RecordedWorld, one: RecordedWorld | None) -> ComparisonVerdict:
        if one is None:
            return not_judged("needs the run on 1 rank: --world 1,...")
        return function(world, one)

    return compared


def _by_itself(function: Callable[[RecordedWorld], ComparisonVerdict]) -> Judge:
    def judged(world: RecordedWorld, one: RecordedWorld | None) -> ComparisonVerdict:
        return function(world)

    return judged


_PROPERTIES: Sequence[tuple[str, str, Judge, bool]] = (
    ("shares", "each sample once an epoch", _by_itself(samples.judge_shares), True),
    ("order", "a new order each epoch", _by_itself(samples.judge_order), True),
    ("epoch", "an epoch as on 1 rank", _beside_one(samples.judge_epoch), False),
    ("rate", "learning rate", _beside_one(rates.judge), False),
    ("replicas", "parameters equal on ranks", replicas.judge, False),
    ("loss", "loss as on 1 rank", _beside_one(values.judge_loss), False),
    ("updates", "updates as on 1 rank", _beside_one(values.judge_updates), False),
    ("masks", "dropout masks", _by_itself(masks.judge), False),
    ("evaluation", "each sample evaluated once", samples.judge_count, False),
    ("figure", "printed figure of all ranks", samples.judge_figure, False),
)


def findings_of(properties: Sequence[Property]) -> list[Finding]:
    """Return each finding once, of the smallest number of ranks that has it."""
    first: dict[str, Finding] = {}
    sizes: dict[str, list[int]] = {}
    for one_property in properties:
        for size, verdict in one_property.verdicts.items():
            if verdict.finding is not None:
                first.setdefault(verdict.finding.name, verdict.finding)
                sizes.setdefault(verdict.finding.name, []).append(size)
    return [_also(finding, sizes[name][1:]) for name, finding in first.items()]


def _also(finding: Finding, others: Sequence[int]) -> Finding:
    """Return a finding that names the other numbers of ranks which have it too."""
    if not others:
        return finding
    numbers = " and ".join(map(str, others))
    return replace(finding, evidence=(*finding.evidence, f"also on {numbers} ranks"))
