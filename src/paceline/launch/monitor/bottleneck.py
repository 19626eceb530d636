"""Decide whether steps wait for data or gradients longer than they compute, or for a CPU. Pure.

The decision is made from the parts of a typical step (``step_parts.coarse``), and is a hint: a run
whose steps wait is not broken. Training that has lost less than ``LEAST_LOST_S`` gets none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import Finding
from paceline.launch.monitor import memory_growth, step_parts
from paceline.text.wording import milliseconds

DATA, COMMUNICATION = "data-bound", "communication-bound"
# A worker takes about as long to send a batch to its rank: shorter waits cannot be tuned away.
LEAST_DATA_S = 0.001
# Of a step: `paceline tune` has nothing to gain where steps wait for data less than this.
SMALL_DATA_SHARE = 0.05
# `paceline tune` and `paceline bench` take about a minute: to gain less is not worth it.
LEAST_LOST_S = 10.0
LEAST_CPU_SHARE = 0.2  # of a rank's time, that it waits for a CPU
_PARTS = {DATA: "data", COMMUNICATION: "communication"}
_WORDS = {DATA: "data", COMMUNICATION: "gradients"}
_LEAST_SHARE = 0.005  # of a step; smaller parts are not mentioned


@dataclass(frozen=True)
class RunFacts:
    """What the advice depends on."""

    num_ranks: int  # number of ranks
    num_hosts: int  # number of hosts
    num_steps: int  # optimizer steps so far
    # the script with its arguments, to paste; empty if it is not a script that can be started again
    script: str = ""

    @classmethod
    def of_ranks(
        cls, ranks: Sequence[Mapping[str, Any]], *, num_steps: int, script: str
    ) -> RunFacts:
        """Return the facts of a run whose ranks are plain data, each with its ``"host"``."""
        hosts = {rank["host"] for rank in ranks}
        return cls(len(ranks), len(hosts), num_steps, script)


def longest_wait(parts: Mapping[str, float]) -> str:
    """Return ``DATA`` or ``COMMUNICATION`` if steps wait for it longer than they compute, else "".

    Args:
        parts: Seconds by part, from ``step_parts.coarse``; only ``compute`` where the others are
            unknown.
    """
    data_s, exchange_s = parts.get("data", 0.0), parts.get("communication", 0.0)
    if max(data_s, exchange_s) <= parts["compute"]:
        return ""
    if exchange_s >= data_s:
        return COMMUNICATION
    return DATA if data_s >= LEAST_DATA_S else ""


def finding_of(
    # what ``stage_times.describe`` returned; None if too few steps were timed
    step: Mapping[str, Any] | None,
    run: RunFacts,  # what is known of the run
) -> Finding | None:
    """Return what most steps wait for; None if they compute longer, or too little was lost."""
    if step is None:
        return None
    parts = step_parts.coarse(step, run.num_ranks)
    name = longest_wait(parts)
    if not name:
        return None
    wait_s = parts[_PARTS[name]]
    lost_s = wait_s * run.num_steps
    if lost_s < LEAST_LOST_S:
        return None
    return Finding(
        name,
        waiting(name, step),
        evidence=(
            f"a step of {milliseconds(step['seconds'])}: {_listed(parts)}",
            f"{run.num_steps:,} steps: about {lost_s:,.0f} s of waiting for {_WORDS[name]}",
        ),
        fix=_advice(name, run),
        severity="hint",
    )


def hints_of_ranks(
    ranks: Sequence[Mapping[str, Any]],  # what the speed log describes of each rank
) -> list[Finding]:
    """Return what is found about single ranks: memory that grows, and a wait for a CPU."""
    findings = memory_growth.finding_of(ranks), starved(ranks)
    return [finding for finding in findings if finding is not None]


def starved(ranks: Sequence[Mapping[str, Any]]) -> Finding | None:
    """Return the rank that waits longest for a CPU, which makes all its stages longer.

    None if that is little. The kernel counts it; threads that the rank waits for are not in it.
    """
    shares = [rank.get("cpu_wait_s", 0.0) / max(rank.get("watched_s", 0.0), 1e-9) for rank in ranks]
    share = max(shares)
    rank = ranks[shares.index(share)]
    if share < LEAST_CPU_SHARE or rank["cpu_wait_s"] < LEAST_LOST_S:
        return None
    return Finding(
        "cpu-starved",
        f"rank {rank['rank']} waits for a CPU {min(share, 1):.0%} of the time",
        where=f"rank {rank['rank']} on {rank['host']}",
        evidence=(
            f"{rank['cpu_wait_s']:,.0f} s in {rank['steps']:,} steps; the rank that waits least:"
            f" {min(shares):.0%}",
        ),
        why="other threads use the CPUs that it may use, so all its stages are longer",
        fix="more CPUs, or fewer threads (OMP_NUM_THREADS), workers or ranks on them",
        severity="hint",
    )


def waiting(
    name: str,  # ``DATA`` or ``COMMUNICATION``
    step: Mapping[str, Any],  # what ``stage_times.describe`` returned, of a step that waits for it
) -> str:
    """Return ``waiting for data 71% of a step``."""
    seconds = step["stages"]["data"] if name == DATA else step["exchange"]
    return f"waiting for {_WORDS[name]} {seconds / step['seconds']:.0%} of a step"


def tuning(script: str) -> str:
    """Return the command that measures faster settings of a script's loader."""
    return f"paceline tune {script or 'MODULE:DATASET'}"


def _advice(name: str, run: RunFacts) -> str:
    """Return the command that finds out what to change."""
    if name == DATA:
        return tuning(run.script)
    if run.num_hosts > 1:
        return (
            "srun paceline bench network, on the same nodes: is the link as fast as it should be?"
        )
    return f"paceline bench {run.script or 'SCRIPT'}"


def _listed(parts: Mapping[str, float]) -> str:
    total_s = sum(parts.values())
    return ", ".join(
        f"{part} {milliseconds(seconds)}"
        for part, seconds in parts.items()
        if seconds >= _LEAST_SHARE * total_s
    )
