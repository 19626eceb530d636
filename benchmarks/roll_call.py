"""How long a thousand nodes need to find each other and to be compared: clients of one real store.

    python benchmarks/roll_call.py
    python benchmarks/roll_call.py --nodes 4000 --processes 4

Each simulated node is a thread with a store client of its own. It announces itself, waits for the
head's word that all are there, posts facts that were recorded from this machine (one node in a
hundred with another patch version of Python, one with a clock that is off), and reads the head's
verdict. Nothing is tried over the network: what a trial would have said is part of the record. The
head is the launcher's own code in this process. Exit status 1 if it takes longer than ``--limit``
seconds, or if the verdict is not the right one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

from torch.distributed import PrefixStore, TCPStore

from paceline.launch.plan import plan
from paceline.launch.plan.options import Options
from paceline.launch.preflight import facts as node_facts
from paceline.launch.preflight.comparison import Comparison
from paceline.launch.preflight.facts import Interface, NodeFacts
from paceline.launch.rendezvous.notes import Note, Notes
from paceline.launch.rendezvous.presence import Arrived
from paceline.launch.rendezvous.roll_call import Roll
from paceline.launch.rendezvous.store import open_store
from paceline.machine import host

TIMEOUT = timedelta(seconds=120)


def record(num_nodes: int) -> NodeFacts:
    """Return the facts of this machine, in the form of a node of the run."""
    options = Options(script=__file__, nnodes=(num_nodes, num_nodes))
    made = plan.make(options, host.gather(None), environ={}, source="")
    return node_facts.gather(options, made, node=0, address="10.0.0.0", port=29000)


def node_of(recorded: NodeFacts, node: int) -> NodeFacts:
    """Return the recorded facts as another node would have them."""
    likeness = {**recorded.likeness, "python": "3.11.99"} if node % 100 == 3 else recorded.likeness
    address = f"10.{node >> 16}.{node >> 8 & 255}.{node & 255}"
    interfaces = (
        Interface("ib0", (address,), mbit=100_000),
        Interface("lo", ("127.0.0.1",), loopback=True),
    )
    name = f"node{node:04d}"
    return replace(
        recorded,
        node=node,
        host=name,
        machine=name,
        likeness=likeness,
        address=address,
        interfaces=interfaces,
    )


def take_part(
    store: TCPStore, node: int, num_nodes: int, *, folder: Path, recorded: NodeFacts
) -> dict:
    """Answer the roll call and take part in the comparison, as one node; returns the verdict."""
    mine = node_of(recorded, node)
    head = Arrived(0, 0, "node0000", 1, (num_nodes, num_nodes))
    note = Note(
        "bench", "none", node, mine.host, 1, name="head", address="", port=0, listens=node == 0
    )
    Roll(
        store,
        replace(head, rank=node, host=mine.host),
        head,
        is_head=node == 0,
        limit_s=60,
        hosts_by_rank=[],
        notes=Notes(folder / "notes", note),
        inform=lambda notice: None,
    ).answer()
    attempt = PrefixStore("attempt/0", store)
    comparison = Comparison(
        attempt, node=node, num_nodes=num_nodes, token="bench", script="train.py", folder=folder
    )
    comparison.post("facts", asdict(mine))
    tried = {(node + 1) % num_nodes, 0} - {node}
    verdict = comparison.exchange(
        {
            "reached": {peer: {node_of(recorded, peer).address: True} for peer in tried},
            "ahead_s": 90.0 if node == 7 else 0.001,
            "folder": True,
        }
    )
    assert verdict is not None, "no verdict"
    assert json.loads(attempt.get(f"paceline/compare/choice/{node}"))["interface"]["name"] == "ib0"
    return verdict


def simulate(port: int, nodes: range, num_nodes: int, folder: Path, recorded: NodeFacts) -> None:
    """Be some of the nodes, a thread each."""
    failed = []
    waiting = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=TIMEOUT)
    waiting.add("ready", 1)
    waiting.wait(["go"])

    def be(client: TCPStore, node: int) -> None:
        try:
            take_part(client, node, num_nodes, folder=folder, recorded=recorded)
        except BaseException as error:
            failed.append((node, error))

    threads = []
    for node in nodes:
        client = TCPStore(
            "127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=TIMEOUT
        )
        threads.append(threading.Thread(target=be, args=(client, node)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    if failed:
        sys.exit(f"{len(failed)} nodes failed, the first: {failed[0]!r}")


def check(verdict: dict) -> None:
    """The verdict must name what was planted and nothing else."""
    assert verdict["error"] is None, verdict["error"]
    assert {warning["name"] for warning in verdict["warnings"]} == {
        "environment-differs",
        "clock-skew",
    }
    assert all(len(warning["evidence"]) < 12 for warning in verdict["warnings"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit", type=float, default=20.0)
    parser.add_argument("--inside", action="store_true", help="in a network namespace already")
    args = parser.parse_args()
    if not args.inside and shutil.which("unshare") and shutil.which("ip"):
        # Without a network no name server can be asked: torch does so for each connection, and here
        # all of them come from one machine, at once.
        inside = shlex.join([sys.executable, *sys.argv, "--inside"])
        ended = subprocess.run(
            ["unshare", "-rn", "sh", "-c", f"ip link set lo up && exec {inside}"], check=False
        )
        sys.exit(ended.returncode)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    recorded = record(args.nodes)
    store = open_store("127.0.0.1", 0, must=True)
    assert store is not None
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shares = [range(1 + place, args.nodes, args.processes) for place in range(args.processes)]
        children = [
            spawn.Process(target=simulate, args=(store.port, share, args.nodes, folder, recorded))
            for share in shares
        ]
        for child in children:
            child.start()
        while int(store.add("ready", 0)) < args.processes:  # they import torch
            time.sleep(0.01)
        store.set("go", "")
        begun = time.monotonic()
        verdict = take_part(store, 0, args.nodes, folder=folder, recorded=recorded)
        judged_s = time.monotonic() - begun
        for child in children:
            child.join()
        all_s = time.monotonic() - begun
    check(verdict)
    for warning in verdict["warnings"]:
        print(f"  {warning['name']}: {warning['what']}", *warning["evidence"], sep="\n    ")
    print(
        f"{args.nodes} nodes: judged {judged_s:.1f} s after all had been started, read by all after"
        f" {all_s:.1f} s"
    )
    if any(child.exitcode for child in children) or all_s > args.limit:
        sys.exit(1)


if __name__ == "__main__":
    main()
