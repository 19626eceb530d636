"""Check ranks that the batch script fills in, where each task needs its own."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.diagnose.lint.job.case import Case
from paceline.diagnose.lint.job.checks.rendezvous import same_on_all
from paceline.diagnose.lint.job.launches import Launch, argument
from paceline.errors import Finding


def ranks_from_batch_host(case: Case) -> Iterator[Finding]:
    """Find ranks that the batch script fills in for a program that srun starts once per task."""
    for launch in case.training:
        spread = case.shape(launch)
        step, per_node = launch.call.step, spread.tasks_per_node or case.job.tasks_per_node or 0
        tasks = per_node * (spread.nodes or case.job.nodes or 0)
        if launch.spawns or step is None or tasks < 2:
            continue
        yield from _rank_argument(case, launch)
        yield from _rank_variable(case, launch, tasks)


def _rank_argument(case: Case, launch: Launch) -> Iterator[Finding]:
    for names in (
        (r"(?:node|machine|global|world)[_-]rank", r"rank", r"node[_-]id"),
        (r"local[_-]rank",),
    ):
        match = argument(launch, names)
        symbol = same_on_all(case, launch, match[0]) if match else None
        if match and symbol:
            name = match[1].text.partition("=")[0]
            yield case.finding(
                "node-rank-on-batch-host",
                f"{name} {symbol.text} is filled in by the batch script, before srun: every task"
                " gets 0",
                line=case.line_of(launch, name),
                why="all tasks take themselves for rank 0; the job waits for ranks that never come",
                fix=(
                    f"srun bash -c 'python {launch.script} {name} ${symbol.name or 'SLURM_PROCID'}"
                    " ...'"
                ),
                severity=case.severity(launch),
            )


def _rank_variable(case: Case, launch: Launch, tasks: int) -> Iterator[Finding]:
    env = launch.call.env
    rank = env.get("RANK")
    symbol = same_on_all(case, launch, rank) if isinstance(rank, str) else None
    setting = case.exported("RANK")
    # RANK alone may be the program's own; with these two it is what torch's env:// reads.
    if symbol is None or not {"WORLD_SIZE", "MASTER_ADDR"} <= set(env):
        return
    yield case.finding(
        "node-rank-on-batch-host",
        f"RANK={symbol.text} is filled in by the batch script, before srun: each of the {tasks}"
        " tasks gets 0",
        line=setting.line if setting else case.line_of(launch, "RANK="),
        more=[case.line_of(launch, launch.script)],
        why="all tasks take themselves for rank 0; the job waits for ranks that never come",
        fix=f"srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python {launch.script}'",
        severity=case.severity(launch),
    )


CHECKS = (ranks_from_batch_host,)
