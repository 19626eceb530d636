"""Two hosts, as network namespaces on one machine: what crosses a network is tested across one."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.namespaces,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="iproute2 is not installed"),
]

HEAD, OTHER = "10.77.0.1", "10.77.0.2"


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts():
    """Two namespaces joined by a cable; gone after the test."""
    tag = uuid.uuid4().hex[:6]
    names = [f"pl-{tag}-a", f"pl-{tag}-b"]
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
    except subprocess.CalledProcessError as error:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        pytest.skip(f"namespaces cannot be made here: {error.stderr.strip()}")
    try:
        ip(
            "link",
            "add",
            f"v{tag}a",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "name",
            f"v{tag}b",
            "netns",
            names[1],
        )
        for name, end, address in ((names[0], "a", HEAD), (names[1], "b", OTHER)):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", f"v{tag}{end}")
            ip("-n", name, "link", "set", f"v{tag}{end}", "up")
        yield names
    finally:
        for name in names:
            ip("netns", "del", name)


TRAIN = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = DistributedDataParallel(torch.nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(20):
    loss = net(torch.full((4, 8), float(rank + step))).square().mean()
    loss.backward(); opt.step(); opt.zero_grad()
open(f"trained-{rank}", "w").write(repr(net.module.weight.sum().item()))
print("master", os.environ["MASTER_ADDR"])
dist.destroy_process_group()
"""


def start_in(command, host, *args):
    """Start paceline run inside a namespace."""
    paceline = Path(sys.executable).parent / "paceline"
    return command.start("netns", "exec", host, paceline, "run", *args, program=shutil.which("ip"))


@pytest.mark.parametrize("kind", ["static", "c10d"])
def test_two_hosts_train_together_by_hand(command, hosts, kind):
    command.script(TRAIN)
    started = []
    for node, host in enumerate(hosts):
        where = (
            ["--node-rank", node, "--master-addr", HEAD, "--master-port", 29500]
            if kind == "static"
            else ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{HEAD}:29400"]
        )
        started.append(
            start_in(command, host, "--nnodes", 2, "--nproc-per-node", 1 + node, *where, "train.py")
        )
    ended = [running.wait() for running in started]
    assert [end.status for end in ended] == [0, 0], [end.err for end in ended]
    trained = {(command.folder / f"trained-{rank}").read_text() for rank in range(3)}
    assert len(trained) == 1  # the replicas agree
    assert "master 10.77.0." in ended[0].out + ended[1].out  # numeric, never a name
    for end in ended:
        told = [line for line in end.err.splitlines() if "roll call" in line]
        assert len(told) == 1
        assert re.search(
            r"roll call: 2 nodes alike, link [0-9.]+ [GM]bit/s, [0-9.]+ ms, [0-2]\.\d s", told[0]
        ), told


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("DROP", "dropped by a firewall"),
        ("REJECT", "rejected by a firewall"),
        ("REJECT --reject-with tcp-reset", "nothing listens there"),
    ],
)
@pytest.mark.skipif(shutil.which("iptables") is None, reason="iptables is not installed")
def test_a_node_says_why_it_does_not_reach_the_head(command, hosts, rule, words):
    command.script("print('never')")
    ip(
        "netns",
        "exec",
        hosts[0],
        "iptables",
        *f"-A INPUT ! -i lo -p tcp --dport 29500 -j {rule}".split(),
    )
    where = ("--nnodes", 2, "--master-addr", HEAD, "--master-port", 29500, "--roll-call-timeout", 5)
    head, other = (
        start_in(command, host, *where, "--node-rank", node, "train.py")
        for node, host in enumerate(hosts)
    )
    ended = [head.wait(), other.wait()]
    assert [end.status for end in ended] == [1, 1]
    assert words in ended[1].block
    assert "node-missing: node 1 of 2" in ended[0].block
    assert f"node 1 on {socket.gethostname()} is up and tries {HEAD}:29500" in ended[0].block


WAITING = (
    "import os, time\nopen('up-' + os.environ['RANK'], 'w').write('here\\n')\ntime.sleep(120)\n"
)
# One all-reduce after the other, for so long that a cut falls into it.
REDUCING = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
x, begun = torch.ones(1), time.monotonic()
open(f"up-{dist.get_rank()}", "w").write("here\\n")
while x[0] == 1:
    time.sleep(0.05)
    over = torch.tensor([float(time.monotonic() - begun > float(sys.argv[1]))])
    dist.all_reduce(over)
    x = torch.ones(1) * (1 if over[0] == 0 else 2)
open(f"trained-{dist.get_rank()}", "w").write("all\\n")
dist.destroy_process_group()
"""


def train_on(command, hosts, *options, kind="static", words=()):
    """Start a launcher on each host, and wait until the ranks train."""
    started = []
    for node, host in enumerate(hosts):
        where = (
            ["--node-rank", node, "--master-addr", HEAD, "--master-port", 29500]
            if kind == "static"
            else ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{HEAD}:29400"]
        )
        started.append(
            start_in(
                command,
                host,
                "--nnodes",
                2,
                "--nproc-per-node",
                1,
                *where,
                *options,
                "train.py",
                *words,
            )
        )
    for rank in range(2):
        command.wait_for(command.folder / f"up-{rank}")
    time.sleep(1.5)  # a few heartbeats
    return started


def set_link(hosts, state):
    """Cut the cable of the second host, or mend it."""
    ip("-n", hosts[1], "link", "set", f"v{hosts[1].split('-')[1]}b", state)


def lines_of(running):
    """Return the lines that a launcher prints to stderr, with their times, as they come."""
    lines = []

    def read():
        for text in running.process.stderr:
            lines.append((time.monotonic(), text.rstrip()))

    threading.Thread(target=read, daemon=True).start()
    return lines


@pytest.mark.alone
def test_both_hosts_name_a_cut_link_within_15_s_and_end_after_the_node_timeout(command, hosts):
    command.script(WAITING)
    started = train_on(command, hosts, "--node-timeout", 14)
    printed = [lines_of(running) for running in started]
    set_link(hosts, "down")
    begun = time.monotonic()
    assert [running.process.wait(45) for running in started] == [1, 1]
    assert 14 <= time.monotonic() - begun < 25
    time.sleep(0.2)
    for lines, name in zip(printed, ("node 1 (", "the head, "), strict=True):
        noticed_s = [
            at
            for at, text in lines
            if f"notice: {name}" in text and "has been silent for 1" in text
        ]
        assert [at - begun < 15 for at in noticed_s] == [True], lines
        text = "\n".join(text for _, text in lines)
        assert "has gone silent" in text
        assert "the link between the two is what is gone" in text
    assert command.survivors(within_s=10) == []


def test_a_node_that_is_cut_off_from_the_head_does_not_wait_for_a_restart(command, hosts):
    """The head's host does not even refuse: what asks its store would wait for minutes."""
    command.script(WAITING)
    head, other = train_on(command, hosts, "--max-restarts", 2, "--node-timeout", 11)
    set_link(hosts, "down")
    begun = time.monotonic()
    ended = [head.wait(), other.wait()]
    assert time.monotonic() - begun < 35
    assert [end.status for end in ended] == [1, 1]
    assert all("has gone silent" in end.block for end in ended)
    again = "start again, on all 2 nodes, each with its own --node-rank: paceline run --nnodes 2"
    assert all(again in end.block for end in ended), "\n=====\n".join(end.err for end in ended)


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("kind", "cut_s"),
    [
        ("static", 14),
        pytest.param("c10d", 14, marks=pytest.mark.slow),
        pytest.param("static", 60, marks=pytest.mark.slow),
    ],
)
def test_a_run_survives_a_cut_of_its_network(command, hosts, kind, cut_s):
    command.script(REDUCING)
    started = train_on(command, hosts, kind=kind, words=(cut_s + 4,))
    set_link(hosts, "down")
    time.sleep(cut_s)
    set_link(hosts, "up")
    ended = [running.wait(timeout=100) for running in started]
    assert [end.status for end in ended] == [0, 0], [end.err for end in ended]
    assert all((command.folder / f"trained-{rank}").exists() for rank in range(2))
    for end in ended:
        assert re.search(r"notice: .* has been silent for 1\d s", end.err), end.err
        assert re.search(r"notice: .* is heard again, after [1-9]\d s", end.err), end.err
        assert not re.search(r"[A-Z]{3}\d{3}", end.err), end.err


@pytest.mark.skipif(shutil.which("iptables") is None, reason="iptables is not installed")
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_run_survives_a_firewall_that_swallows_everything_for_a_minute(command, hosts):
    """TCP's own repeats are a minute apart by then: heartbeats need a new connection."""
    command.script(REDUCING)
    started = train_on(command, hosts, words=(30,))
    for chain, change in (("INPUT", "-A"), ("OUTPUT", "-A")):
        ip("netns", "exec", hosts[1], "iptables", change, chain, "-p", "tcp", "-j", "DROP")
    time.sleep(55)
    ip("netns", "exec", hosts[1], "iptables", "-F")
    ended = [running.wait(timeout=150) for running in started]
    assert [end.status for end in ended] == [0, 0], [end.err for end in ended]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("who", [0, 1])
def test_a_run_survives_a_launcher_that_is_stopped_for_15_s(command, hosts, who):
    command.script(REDUCING)
    started = train_on(command, hosts, words=(18,))
    started[who].signal(signal.SIGSTOP)
    time.sleep(15)
    started[who].signal(signal.SIGCONT)
    ended = [running.wait() for running in started]
    assert [end.status for end in ended] == [0, 0], [end.err for end in ended]
    assert "has been silent for 1" in ended[1 - who].err
    assert "is heard again, after 1" in ended[1 - who].err
    assert "silent" not in ended[who].err  # it has heard nobody because it did not run


@pytest.mark.parametrize("who", [0, 1])
def test_a_killed_launcher_is_lost_at_once(command, hosts, who):
    """Its host answers that it has ended: nobody waits for the node timeout."""
    command.script(WAITING)
    started = train_on(command, hosts)
    started[who].signal(signal.SIGKILL)
    begun = time.monotonic()
    ended = started[1 - who].wait()
    assert time.monotonic() - begun < 10
    assert ended.status == 1
    assert "has gone: it was killed, or it crashed" in ended.block
    started[who].process.wait()
    assert command.survivors(within_s=10) == []


@pytest.mark.parametrize("first", [0, 1])
def test_two_launchers_with_node_rank_0_are_both_told_so(command, hosts, first):
    command.script("print('never')")
    where = (
        "--nnodes",
        2,
        "--node-rank",
        0,
        "--master-addr",
        HEAD,
        "--master-port",
        29500,
        "train.py",
    )
    one = start_in(command, hosts[first], *where)
    time.sleep(5)  # the first is about to listen, or already does
    other = start_in(command, hosts[1 - first], *where)
    ended = [one.wait(), other.wait()]
    assert [end.status for end in ended] == [1, 1], [end.err for end in ended]
    assert all("duplicate-ranks: two nodes have node rank 0" in end.err for end in ended), [
        end.err for end in ended
    ]
    assert ended[0].block == ended[1].block


@pytest.mark.alone
@pytest.mark.skipif(shutil.which("iptables") is None, reason="iptables is not installed")
def test_what_is_missing_is_named_after_5_s_on_both_hosts_and_when_it_changes(command, hosts):
    """A firewall that is opened later, as an admin does when the notice has told."""
    command.script("print('here')")
    rule = "INPUT ! -i lo -p tcp --dport 29500 -j DROP"
    ip("netns", "exec", hosts[0], "iptables", "-A", *rule.split())
    where = ("--nnodes", 2, "--master-addr", HEAD, "--master-port", 29500)
    started = [
        start_in(command, host, *where, "--node-rank", node, "train.py")
        for node, host in enumerate(hosts)
    ]
    time.sleep(18)
    ip("netns", "exec", hosts[0], "iptables", "-D", *rule.split())
    head, other = (running.wait() for running in started)
    assert [head.status, other.status] == [0, 0], [head.err, other.err]
    assert re.search(r"notice: waiting for node 1 of 2, for [5-9] s", head.err), head.err
    assert f"is up and tries {HEAD}:29500: dropped by a firewall" in head.err
    assert "fix: open port 29500" in head.err.split("is up and tries")[1]
    assert "start paceline run there too" not in head.err.split("is up and tries")[1]
    assert re.search(
        rf"waiting for the head at {HEAD}:29500: dropped by a firewall.*, for \d+ s", other.err
    ), other.err
