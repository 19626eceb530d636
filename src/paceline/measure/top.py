"""``paceline top``: show the speed of a running job, from the files of its run folder.

The launcher of node 0 writes them every few seconds (``launch.monitor.speed_log``), so this works
on every machine that sees the folder, and for scripts of every framework.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from paceline.errors import Finding, SetupError
from paceline.measure import run_choice, step_parts
from paceline.rundir import files
from paceline.rundir.files import RunDir
from paceline.text.wording import duration

# The description is written every 5 s, with hundreds of nodes less often.
STALE_S = 60.0
_MOST_RANKS, _MOST_GPUS = 10, 16
_BAR = 20  # columns of a whole step


def find(run: str) -> RunDir:
    """Return the folder of a run.

    Args:
        run: A run folder, or the name of one below ``paceline-runs``; empty for the run there
            whose speed was written last.

    Raises:
        SetupError: There is no such folder, or it holds no speed.
    """
    if run:
        return run_choice.named(run, advice=_missing(""))
    what = "no run in paceline-runs has written its speed"
    return run_choice.latest("speed.json", advice=_missing(what))


def read(run_dir: RunDir) -> dict[str, Any]:
    """Return the last description of a run's speed.

    Raises:
        SetupError: The run has written none, or the file is damaged.
    """
    try:
        speed = files.read_json(run_dir.speed, most_bytes=1 << 24)
    except FileNotFoundError:
        what = f"{files.display_path(run_dir.root)} holds no speed.json"
        raise SetupError(_missing(what)) from None
    except (OSError, ValueError) as error:
        what = f"{files.display_path(run_dir.speed)} cannot be read: {error}"
        raise SetupError(_missing(what)) from None
    return dict(speed)


def _missing(what: str) -> Finding:
    return Finding(
        "input-unreadable",
        what,
        evidence=("a launcher writes it 5 s after its ranks have started, unless --no-probe",),
        fix="paceline top RUN, with the run folder that the launcher printed",
    )


def figures(speed: Mapping[str, Any], *, now_s: float) -> dict[str, Any]:
    """Return what ``--json`` prints: the description and what follows from it. Pure.

    Args:
        speed: The description.
        now_s: The time, in seconds since the epoch.
    """
    batches_per_s = speed["steps_per_s"] * speed["batches_per_step"]
    return {
        **speed,
        "age_s": max(0.0, now_s - speed["time_s"]),
        "samples_per_s": speed["samples_per_batch"] * batches_per_s,
        "tokens_per_s": speed["tokens_per_batch"] * batches_per_s,
        "epoch_left_s": _epoch_left_s(speed, batches_per_s),
    }


def _epoch_left_s(speed: Mapping[str, Any], batches_per_s: float) -> float | None:
    """Return the seconds to the end of the current training loop; None if they are unknown."""
    first = speed["ranks"][0]
    left = first["loop_length"] - first["open_batches"]
    is_known = first["open_batches"] > 0 and left >= 0 and batches_per_s > 0
    return left / batches_per_s if is_known else None


def render(shown: Mapping[str, Any], *, name: str) -> list[str]:
    """Return the lines of ``paceline top``. Pure.

    Args:
        shown: What ``figures`` returned.
        name: Name of the run.
    """
    age = f" · written {duration(round(shown['age_s']))} ago" if shown["age_s"] > STALE_S else ""
    lines = [f"{name} · attempt {shown['attempt']}{age}", _progress(shown)]
    if shown["step"]:
        lines += ["", *_step(shown["step"], len(shown["ranks"]))]
    lines += ["", *_ranks(shown)]
    if shown["gpus"]:
        lines += ["", *_gpus(shown["gpus"])]
    return lines


def _progress(shown: Mapping[str, Any]) -> str:
    first = shown["ranks"][0]
    parts = [f"{shown['steps']:,} steps", f"{shown['steps_per_s']:.3g} steps/s"]
    if shown["samples_per_s"]:
        parts.append(f"{shown['samples_per_s']:,.0f} samples/s")
    if shown["tokens_per_s"]:
        parts.append(f"{shown['tokens_per_s']:,.0f} tokens/s")
    if shown["loss"] is not None:
        parts.append(f"loss {shown['loss']:.4g}")
    if shown["epoch_left_s"] is not None:
        parts.append(
            f"loop {first['loops'] + 1}: {first['open_batches']:,} of {first['loop_length']:,}"
            f" batches, {duration(round(shown['epoch_left_s']))} left"
        )
    return " · ".join(parts)


def _step(step: Mapping[str, Any], num_ranks: int) -> list[str]:
    """Return a bar for each part of a step."""
    lines = [f"step {step['seconds'] * 1000:.3g} ms"]
    for part, seconds in step_parts.parts(step, num_ranks).items():
        share = seconds / step["seconds"]
        lines.append(f"  {part:14}{share:5.0%}  {'█' * round(share * _BAR)}")
    if step["named"]:
        lines.append(f"  {step_parts.late_rank(step['named'])}")
    return lines


def _ranks(shown: Mapping[str, Any]) -> list[str]:
    """Return a table of the ranks that work longest without waiting for others."""
    rows = sorted(shown["ranks"], key=_own_s_per_step, reverse=True)
    lines = [f"{'rank':>6}  {'host':24}{'steps':>10}{'data':>7}{'own work':>11}"]
    for row in rows[:_MOST_RANKS]:
        data_share = row["data_s"] / row["seconds"] if row["seconds"] else 0.0
        own_ms = _own_s_per_step(row) * 1000
        lines.append(
            f"{row['rank']:>6}  {row['host'][:23]:24}{row['steps']:>10,}{data_share:>7.0%}"
            f"{own_ms:>8.3g} ms"
        )
    if len(rows) > _MOST_RANKS:
        lines.append(f"{'':8}and {len(rows) - _MOST_RANKS} more, which need less")
    return lines


def _own_s_per_step(row: Mapping[str, Any]) -> float:
    """Return the seconds of a step outside backward, in which ranks wait for each other."""
    return float(row["own_s"]) / (row["steps"] - 1) if row["steps"] > 1 else 0.0


def _gpus(loads: list[Mapping[str, Any]]) -> list[str]:
    lines = [f"{'GPU':>6}  {'host':24}{'busy':>6}{'memory':>24}"]
    for load in loads[:_MOST_GPUS]:
        busy = "-" if load["utilization"] is None else f"{load['utilization']:.0%}"
        memory = "-"
        if load["memory_used"] is not None and load["memory_total"]:
            used_gb, total_gb = load["memory_used"] / 1e9, load["memory_total"] / 1e9
            memory = f"{used_gb:.1f} of {total_gb:.1f} GB"
        lines.append(f"{load['index']:>6}  {load['host'][:23]:24}{busy:>6}{memory:>24}")
    if len(loads) > _MOST_GPUS:
        lines.append(f"{'':8}and {len(loads) - _MOST_GPUS} more")
    return lines


def show(run: str, *, once: bool, as_json: bool, every_s: float) -> None:
    """Show a run's speed once, or again and again until Ctrl-C.

    Args:
        run: As in ``find``.
        once: Whether to show it once.
        as_json: Whether to print data for a program, one line for each time.
        every_s: Seconds between two times.

    Raises:
        SetupError: There is nothing to show.
    """
    import json

    run_dir = find(run)
    name = run_dir.root.name
    if as_json or once:
        while True:
            shown = figures(read(run_dir), now_s=time.time())
            text = json.dumps(shown) if as_json else "\n".join(render(shown, name=name))
            print(text, flush=True)
            if once:
                return
            time.sleep(every_s)
    _live(run_dir, name, every_s)


def _live(run_dir: RunDir, name: str, every_s: float) -> None:
    """Show it in place, on a terminal."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    def text() -> Text:
        return Text("\n".join(render(figures(read(run_dir), now_s=time.time()), name=name)))

    with Live(text(), console=Console(highlight=False), auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            live.update(text(), refresh=True)
