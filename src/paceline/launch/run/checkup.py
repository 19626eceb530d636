"""``paceline run --check-only``: the nodes meet and compare themselves, each is examined, and no script is run.

What every node's doctor found goes round by a process group, which so is tried too; each launcher then prints all.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import IO, Any

from paceline import env
from paceline.errors import EXIT_OK, Finding, gravest_first, status_of
from paceline.launch.outcome.report import Report
from paceline.launch.plan import script
from paceline.launch.plan.options import Options
from paceline.launch.plan.task import FUNCTION, RankTask
from paceline.text.wording import few

_NAME = "check-only"  # of the run, where no script was given
_ALL = 4  # so many hosts are named one by one

Conduct = Callable[[Options, RankTask, Callable[[], None]], Report]


def run(options: Options, conduct: Conduct) -> int:
    """Check all nodes of a run; returns the command's exit status.

    Args:
        options: What was asked for.
        conduct: Conducts a run of a function on every rank.

    Raises:
        PacelineError: A script was given and there is none to run, or the run could not be started.
    """
    if options.script:
        script.read(options)  # it is not run, and a wrong name is to be found all the same
    launcher = os.getpid()
    # The outcome is told here, as data or as text; what the run itself prints is its failure to come about.
    asked = replace(options, script=options.script or _NAME, check=True)
    task = RankTask(local_rank=0, kind=FUNCTION, target=asked.script, method="fork")
    with tempfile.TemporaryFile("w+") as handed_over:
        report = conduct(replace(asked, json=False), task, lambda: _examine(handed_over))
        if os.getpid() != launcher:
            return EXIT_OK  # a rank, at its end
        if report.exit_status != EXIT_OK:
            if options.json:
                print(json.dumps({"findings": [finding.to_json() for finding in report.findings], "nodes": []}))
            return report.exit_status
        handed_over.seek(0)
        nodes = json.load(handed_over)
    findings = join(nodes)
    if options.placed.left_to_head(options.node_rank):
        return status_of(findings)  # the head says it, into the same output
    if options.json:
        print(json.dumps({"findings": [finding.to_json() for finding in findings], "nodes": nodes}, indent=1))
    else:
        print("\n".join(told(nodes, findings)))
    return status_of(findings)


def _examine(handed_over: IO[str]) -> None:
    """In a rank: the first of each node examines it, and hands over what all nodes have found."""
    from torch import distributed

    from paceline.diagnose import doctor

    distributed.init_process_group("gloo")
    first = env.read(env.LOCAL_RANK) == "0"
    mine = {"host": socket.gethostname(), **doctor.examine().to_json()} if first else None
    found: list[dict[str, Any] | None] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, mine)
    if first:
        json.dump([each for each in found if each is not None], handed_over)
        handed_over.flush()
    distributed.destroy_process_group()
    sys.stdout.flush()


def join(nodes: Sequence[dict[str, Any]]) -> list[Finding]:
    """Return the findings of all nodes, those that several share told once, errors first.

    Args:
        nodes: For each node its ``host`` and the ``findings`` as plain data.
    """
    hosts: dict[Finding, list[str]] = {}
    for node in nodes:
        for values in node["findings"]:
            hosts.setdefault(Finding.from_json(values), []).append(node["host"])
    return [replace(each, where=_placed(hosts[each], each.where, len(nodes))) for each in gravest_first(hosts)]


def _placed(hosts: Sequence[str], where: str, num_nodes: int) -> str:
    named = f"all {num_nodes} nodes" if num_nodes > 1 and len(hosts) == num_nodes else few(hosts, _ALL)
    return f"{named}: {where}" if where else named


def told(nodes: Sequence[dict[str, Any]], findings: Sequence[Finding]) -> list[str]:
    """Return what is printed: the findings, and how many nodes had none."""
    with_errors = sum(any(each["severity"] == "error" for each in node["findings"]) for node in nodes)
    count = f"{len(nodes)} node{'' if len(nodes) == 1 else 's'} examined"
    last = f"{count}, {with_errors} with errors" if with_errors else f"{count}, none with errors"
    return [*(f"{finding.render()}\n" for finding in findings), last]
