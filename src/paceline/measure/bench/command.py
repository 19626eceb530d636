"""Run ``paceline bench``: check, measure, write the run folder, print the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from paceline import env
from paceline.errors import EXIT_FAILED, EXIT_OK, RunError, option_invalid
from paceline.launch.plan import script
from paceline.launch.plan.options import Options
from paceline.machine import cpus, gpus
from paceline.measure import bench_file, files_as_before, trial
from paceline.measure.bench import brake, request, rounds, settings, table
from paceline.measure.bench.request import BenchRequest, Devices
from paceline.measure.bench.rounds import UNTIMED, MeasuredRounds
from paceline.measure.bench.settings import TriedSetting, Worth
from paceline.measure.bench.table import BenchResult
from paceline.measure.trial import Say, TrialResult
from paceline.rundir import files
from paceline.rundir.files import RunDir
from paceline.text import terminal
from paceline.text.json_text import print_json

_NO_SETTING = TriedSetting("no setting", "")


def measure(
    request: BenchRequest,
    measured: MeasuredRounds,  # at least one of its trials went well
    folder: Path,  # where the run folders of the trials are created
    *,
    offers: Sequence[TriedSetting],
    variables: Mapping[str, str],
    say: Say,  # takes what is measured now; returns what moves the progress bar
) -> list[Worth]:
    """Run the trials of all settings; return what each setting is worth."""
    size = max(measured.results)
    candidates = [_NO_SETTING, *offers]
    results: list[list[TrialResult]] = [[] for _ in candidates]
    for number in range(1, request.rounds + 1):
        for place, setting in enumerate(candidates):
            if any(result.finding is not None for result in results[place]):
                continue  # it would fail again
            run_dir = folder / f"setting-{place}-round-{number}"
            one = rounds.make(request, measured, size, run_dir)
            tick = say(f"{setting.name}, round {number} of {request.rounds}")
            environ = {**variables, **setting.environ}
            results[place].append(rounds.run(replace(one, variables=environ), tick))
    first = UNTIMED + rounds.warmup_steps(measured)
    # The trials of the sizes had no setting either; they serve if all of these have failed.
    without = [result for result in results[0] if result.finding is None]
    return [
        settings.judge(setting, of_setting, without or measured.results[size], first=first)
        for setting, of_setting in zip(offers, results[1:], strict=True)
    ]


def devices() -> Devices:
    """Return what this node has for ranks: its visible GPUs, or else its usable CPUs."""
    num_gpus, _ = gpus.count(env.visible_devices())
    if num_gpus:
        return Devices(num_gpus, are_gpus=True)
    return Devices(cpus.usable_cpus()[0], are_gpus=False)


@files_as_before.keeping()
def bench(requested: BenchRequest, *, as_json: bool) -> int:
    """Measure, write ``bench.json``, print the result, and return the exit status.

    Raises UsageError if the request cannot be measured here, or its script does not exist;
    SetupError if the run folder cannot be written; RunError if no trial went well, or the script
    has a syntax error.
    """
    _require_one_task()
    node = devices()
    requested = _complete(requested, node)
    root = trial.new_folder("bench", requested.command[0], requested.run_dir)
    result = _measure(requested, node, root)
    if as_json:
        print_json(to_json(result))
    else:
        terminal.show(table.render(result))
    return EXIT_FAILED if result.findings else EXIT_OK


def _complete(requested: BenchRequest, node: Devices) -> BenchRequest:
    """Return the request with its numbers of ranks, after all checks that need no measurement."""
    script.read(Options(script=requested.command[0], module=requested.is_module))
    if not requested.worlds:
        requested = replace(requested, worlds=request.default_worlds(node))
    request.check(requested, node)
    if requested.settings:
        settings.choose(requested.settings, settings.offered(backend="nccl", cpus=1, ranks=1))
    return requested


def _measure(requested: BenchRequest, node: Devices, root: Path) -> BenchResult:
    """Run all trials, write ``bench.json``, and return the result."""
    threads = _threads(requested, node)
    variables = {} if threads is None else {env.OMP_THREADS: str(threads)}
    with trial.progress(len(requested.worlds) * requested.rounds) as say:
        measured = rounds.measure(requested, root / "trials", variables=variables, say=say)
    findings = [measured.findings[size] for size in sorted(measured.findings)]
    if not measured.results:
        raise RunError(findings[0])
    content = rounds.to_bench(requested, measured, oversubscribed=requested.worlds[-1] > node.count)
    content = replace(content, cpus=cpus.usable_cpus()[0])
    bench_file.write(content, RunDir(root))  # kept also if what follows is interrupted
    worths: list[Worth] = []
    if requested.settings:
        worths = _try_settings(requested, measured, root, variables=variables)
        calculated = settings.accumulation(content.worlds[max(content.worlds)])
        worths += [calculated] if calculated is not None else []
        content = replace(content, settings=tuple(asdict(worth) for worth in worths))
        bench_file.write(content, RunDir(root))
    figures = bench_file.figures(content)
    return BenchResult(
        bench=content,
        figures=figures,
        brake=brake.judge(
            figures,
            is_weak=content.scaling == "weak",
            script=content.command[0],
            gradient_bytes=content.gradient_bytes,
        ),
        findings=findings,
        steps=requested.steps,
        threads=threads,
        has_settled=rounds.has_settled(measured),
        worths=worths,
        folder=files.display_path(root),
    )


def _try_settings(
    requested: BenchRequest,
    measured: MeasuredRounds,
    root: Path,
    *,
    variables: Mapping[str, str],
) -> list[Worth]:
    """Measure the settings that are requested; return what each is worth."""
    offers = settings.offered(
        backend=measured.backend, cpus=cpus.usable_cpus()[0], ranks=max(measured.results)
    )
    candidates = settings.choose(requested.settings, offers)
    with trial.progress((len(candidates) + 1) * requested.rounds) as say:
        return measure(
            requested, measured, root / "trials", offers=candidates, variables=variables, say=say
        )


def to_json(result: BenchResult) -> dict[str, Any]:
    """Return what ``--json`` prints; the steps themselves are in ``bench.json``. Pure."""
    values = result.bench.to_json()
    del values["worlds"]
    return {
        **values,
        "run_dir": result.folder,
        "steps": result.steps,
        "has_settled": result.has_settled,
        "threads": result.threads,
        "figures": [asdict(figures) for figures in result.figures],
        "brake": result.brake.to_json(),
        "findings": [finding.to_json() for finding in result.findings],
    }


def _require_one_task() -> None:
    """Refuse to run in every task of a Slurm step: the tasks would measure each other."""
    num_tasks = env.read(env.STEP_NUM_TASKS)
    if num_tasks is None or num_tasks == "1" or env.in_terminal():
        return
    what = f"bench starts its own ranks on one node, and this is one of {num_tasks} Slurm tasks"
    fix = "srun --ntasks 1 paceline bench ..."
    raise option_invalid(what, where="SLURM_STEP_NUM_TASKS", fix=fix)


def _threads(requested: BenchRequest, node: Devices) -> int | None:
    """Return the threads of a rank at every size; None if the user or the GPUs decide.

    The launcher gives a single rank all CPUs. On CPUs that would compare one rank on all of them
    with several on parts.
    """
    if node.are_gpus or env.read(env.OMP_THREADS):
        return None
    return max(1, node.count // requested.worlds[-1])
