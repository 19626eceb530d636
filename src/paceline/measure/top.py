"""``paceline top``: show the speed of a running job in the terminal, or as JSON."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

from paceline.errors import Finding
from paceline.launch.monitor import step_parts
from paceline.measure import speed
from paceline.rundir.files import RunDir
from paceline.text.json_text import print_json
from paceline.text.quoting import printable_lines
from paceline.text.wording import count, duration, size

# The description is written every 5 s, with hundreds of nodes less often.
STALE_S = 60.0
_MOST_RANKS, _MOST_GPUS = 10, 16
_BAR = 20  # columns of a whole step
_COLUMNS = 80


def render(shown: Mapping[str, Any], *, name: str) -> list[str]:
    """Return the lines of ``paceline top`` of what ``speed.read`` returned. Pure."""
    head = [name, count(len(shown["ranks"]), "rank"), *_state(shown)]
    lines = [*_joined(head), *_progress(shown)]
    if shown["step"]:
        lines += ["", *_step(shown["step"], len(shown["ranks"]))]
    for finding in shown["findings"]:
        lines += ["", *Finding.from_json(finding).render().splitlines()]
    lines += ["", *_ranks(shown)]
    if shown["gpus"]:
        lines += ["", *_gpus(shown["gpus"])]
    return lines


def _state(shown: Mapping[str, Any]) -> list[str]:
    """Return which attempt runs, and whether the description is still true."""
    parts = [f"attempt {shown['attempt']}"] if shown["attempt"] else []
    age = _rounded(shown["age_s"])
    if shown["outcome"]:
        parts.append(f"{shown['outcome']} {age} ago")
    elif shown["age_s"] > STALE_S:
        parts.append(f"written {age} ago: the launcher does not write any more")
    return parts


def _rounded(seconds: float) -> str:
    return duration(round(seconds / 60) * 60 if seconds >= 120 else round(seconds))


def _progress(shown: Mapping[str, Any]) -> list[str]:
    """Return rates and loss, and how far the training loop is."""
    first = shown["ranks"][0]
    parts = [f"{shown['steps']:,} steps", f"{shown['steps_per_s']:.3g} steps/s"]
    if shown["samples_per_s"]:
        parts.append(f"{shown['samples_per_s']:,.0f} samples/s")
    if shown["tokens_per_s"]:
        parts.append(f"{shown['tokens_per_s']:,.0f} tokens/s")
    if shown["loss"] is not None:
        parts.append(f"loss {shown['loss']:.4g}")
    lines = _joined(parts)
    if shown["loop_left_s"] is not None:
        lines.append(
            f"epoch: {first['open_batches']:,} of {first['loop_length']:,}"
            f" batches, {_rounded(shown['loop_left_s'])} left"
        )
    return lines


def _joined(parts: Sequence[str]) -> list[str]:
    """Return parts on as few lines as fit, none of them divided."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) + 3 <= _COLUMNS:
            lines[-1] += f" · {part}"
        else:
            lines.append(part)
    return lines


def _step(step: Mapping[str, Any], num_ranks: int) -> list[str]:
    """Return a bar for each part of a step."""
    lines = [f"step {step_parts.usual_and_mean(step)}"]
    for part, seconds in step_parts.parts(step, num_ranks).items():
        share = seconds / step["seconds"]
        lines.append(f"  {part:14}{share:5.0%}  {'█' * round(share * _BAR)}".rstrip())
    for sentence in step_parts.remarks(step):
        lines += wrap(sentence, _COLUMNS, initial_indent="  ", subsequent_indent="    ")
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


def _gpus(loads: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [f"{'GPU':>6}  {'host':24}{'busy':>6}{'memory':>24}"]
    if len(loads) > _MOST_GPUS:  # the idlest ones hold the others back
        loads = sorted(loads, key=_busy)
    for load in loads[:_MOST_GPUS]:
        busy = "-" if load["utilization"] is None else f"{load['utilization']:.0%}"
        memory = "-"
        if load["memory_used"] is not None and load["memory_total"]:
            memory = f"{size(load['memory_used'])} of {size(load['memory_total'])}"
        lines.append(f"{load['index']:>6}  {load['host'][:23]:24}{busy:>6}{memory:>24}")
    if len(loads) > _MOST_GPUS:
        lines.append(f"{'':8}and {len(loads) - _MOST_GPUS} more")
    return lines


def _busy(load: Mapping[str, Any]) -> float:
    """Return the load of a GPU; one whose load is unknown comes last."""
    return math.inf if load["utilization"] is None else float(load["utilization"])


def show(run: str, *, once: bool, as_json: bool, interval_s: float) -> None:
    """Show a run's speed, as JSON an object a line, once or again and again until Ctrl-C.

    Anything but a terminal gets it once. ``run`` is as in ``speed.find``.
    """
    run_dir = speed.find(run)
    if as_json:
        _print_json(run_dir, once=once, interval_s=interval_s)
    elif once or not sys.stdout.isatty():
        print(_text(run_dir, speed.read(run_dir)))
    else:
        _show_live(run_dir, interval_s)


def _text(run_dir: RunDir, shown: Mapping[str, Any]) -> str:
    return printable_lines("\n".join(render(shown, name=run_dir.root.name)))


def _print_json(run_dir: RunDir, *, once: bool, interval_s: float) -> None:
    while True:
        print_json(speed.read(run_dir), indent=None)
        if once:
            return
        time.sleep(interval_s)


def _show_live(run_dir: RunDir, interval_s: float) -> None:
    """Show it in place until the run has ended."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        while True:
            shown = speed.read(run_dir)
            live.update(Text(_text(run_dir, shown)), refresh=True)
            if shown["outcome"]:
                return
            time.sleep(interval_s)
