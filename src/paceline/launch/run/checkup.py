"""Run ``paceline run --check-only``: nodes meet, compare themselves and run the doctor; no script.

A process group exchanges the findings of every node's doctor, which also tests the group. Each
launcher then prints all findings.
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
from paceline.text.json_text import print_json
from paceline.text.quoting import printable_lines
from paceline.text.wording import few

_NAME = "check-only"  # name of the run without a script
_ALL = 4  # up to this many hosts are listed

Conduct = Callable[[Options, RankTask, Callable[[], None]], Report]


def run(options: Options, conduct: Conduct) -> int:
    """Check all nodes of a run; return the command's exit status.

    Raises PacelineError if the given script does not exist, or the run could not be started.
    """
    if options.script:
        script.read(options)  # it is not run, but a wrong name must be reported
    launcher = os.getpid()
    # The result is printed below, as data or as text. The run prints only its failure to start.
    name = options.script or _NAME
    quiet = replace(options, script=name, check=True, json=False)
    task = RankTask(local_rank=0, kind=FUNCTION, target=name, method="fork")
    with tempfile.TemporaryFile("w+") as nodes_file:
        report = conduct(quiet, task, lambda: _examine(nodes_file))
        if os.getpid() != launcher:
            return EXIT_OK  # this is a rank, at its end
        if report.exit_status != EXIT_OK:
            if options.json:
                print_json(_to_json(report.findings, []), indent=None)
            return report.exit_status
        nodes_file.seek(0)
        nodes = json.load(nodes_file)
    findings = join(nodes)
    if options.starter_defaults.head_reports(options.node_rank):
        return status_of(findings)  # the head prints the findings to the same output
    if options.json:
        print_json(_to_json(findings, nodes))
    else:
        print(printable_lines("\n".join(render(nodes, findings))))
    return status_of(findings)


def _to_json(findings: Sequence[Finding], nodes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"findings": [finding.to_json() for finding in findings], "nodes": nodes}


def _examine(nodes_file: IO[str]) -> None:
    """Examine the node in its first rank, and pass on the findings of all nodes; runs in a rank."""
    from torch import distributed

    from paceline.diagnose import doctor

    distributed.init_process_group("gloo")
    first = env.read(env.LOCAL_RANK) == "0"
    mine = {"host": socket.gethostname(), **doctor.examine().to_json()} if first else None
    nodes: list[dict[str, Any] | None] = [None] * distributed.get_world_size()
    distributed.all_gather_object(nodes, mine)
    if first:
        json.dump([node for node in nodes if node is not None], nodes_file)
        nodes_file.flush()
    distributed.destroy_process_group()
    sys.stdout.flush()


def join(
    # for each node its ``host`` and the ``findings`` as plain data
    nodes: Sequence[dict[str, Any]],
) -> list[Finding]:
    """Return the findings of all nodes, errors first; those that several nodes share come once."""
    hosts: dict[Finding, list[str]] = {}
    for node in nodes:
        for values in node["findings"]:
            hosts.setdefault(Finding.from_json(values), []).append(node["host"])
    return [
        replace(finding, where=_placed(hosts[finding], finding.where, len(nodes)))
        for finding in gravest_first(hosts)
    ]


def _placed(hosts: Sequence[str], where: str, num_nodes: int) -> str:
    are_all = num_nodes > 1 and len(hosts) == num_nodes
    place = f"all {num_nodes} nodes" if are_all else few(hosts, _ALL)
    return f"{place}: {where}" if where else place


def render(nodes: Sequence[dict[str, Any]], findings: Sequence[Finding]) -> list[str]:
    """Return the lines to print: the findings, and how many nodes had errors."""
    with_errors = sum(
        any(finding["severity"] == "error" for finding in node["findings"]) for node in nodes
    )
    count = f"{len(nodes)} node{'' if len(nodes) == 1 else 's'} examined"
    last = f"{count}, {with_errors} with errors" if with_errors else f"{count}, none with errors"
    return [*(f"{finding.render()}\n" for finding in findings), last]
