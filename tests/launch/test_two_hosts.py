"""Two hosts, as network namespaces on one machine: what crosses a network is tested across one."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
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
        ip("link", "add", f"v{tag}a", "netns", names[0], "type", "veth", "peer", "name", f"v{tag}b", "netns", names[1])
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
        started.append(start_in(command, host, "--nnodes", 2, "--nproc-per-node", 1 + node, *where, "train.py"))
    ended = [running.wait() for running in started]
    assert [end.status for end in ended] == [0, 0], [end.err for end in ended]
    trained = {(command.folder / f"trained-{rank}").read_text() for rank in range(3)}
    assert len(trained) == 1  # the replicas agree
    assert "master 10.77.0." in ended[0].out + ended[1].out  # numeric, never a name
    for end in ended:
        told = [line for line in end.err.splitlines() if "roll call" in line]
        assert len(told) == 1
        assert re.search(r"roll call: 2 nodes alike, link [0-9.]+ [GM]bit/s, [0-9.]+ ms, [0-2]\.\d s", told[0]), told


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
    ip("netns", "exec", hosts[0], "iptables", *f"-A INPUT ! -i lo -p tcp --dport 29500 -j {rule}".split())
    where = ("--nnodes", 2, "--master-addr", HEAD, "--master-port", 29500, "--roll-call-timeout", 5)
    head, other = (start_in(command, host, *where, "--node-rank", node, "train.py") for node, host in enumerate(hosts))
    ended = [head.wait(), other.wait()]
    assert [end.status for end in ended] == [1, 1]
    assert words in ended[1].block
    assert "node-missing: node 1 of 2" in ended[0].block
    assert f"node 1 on {socket.gethostname()} is up and knocks at {HEAD}:29500" in ended[0].block


def test_a_host_whose_network_goes_is_named_within_15_s(command, hosts):
    command.script("import os, time\nopen('up-' + os.environ['RANK'], 'w').write('here\\n')\ntime.sleep(120)\n")
    started = [
        start_in(
            command, host, "--nnodes", 2, "--node-rank", node, "--master-addr", HEAD, "--master-port", 29500, "train.py"
        )
        for node, host in enumerate(hosts)
    ]
    for rank in range(2):
        command.wait_for(command.folder / f"up-{rank}")
    time.sleep(1.5)
    ip("-n", hosts[1], "link", "set", f"v{hosts[1].split('-')[1]}b", "down")
    begun = time.monotonic()
    ended = [running.wait() for running in started]
    assert time.monotonic() - begun < 15
    assert [end.status for end in ended] == [1, 1]
    assert all("has gone silent" in end.block for end in ended)
    assert command.survivors(within_s=10) == []


def test_a_node_that_is_cut_off_from_the_head_does_not_wait_for_a_restart(command, hosts):
    """The head's host does not even refuse: what asks its store would wait for minutes."""
    command.script("import os, time\nopen('up-' + os.environ['RANK'], 'w').write('here\\n')\ntime.sleep(120)\n")
    where = ("--nnodes", 2, "--master-addr", HEAD, "--master-port", 29500, "--max-restarts", 2)
    head, other = (start_in(command, host, *where, "--node-rank", node, "train.py") for node, host in enumerate(hosts))
    for rank in range(2):
        command.wait_for(command.folder / f"up-{rank}")
    time.sleep(1.5)
    ip("-n", hosts[1], "link", "set", f"v{hosts[1].split('-')[1]}b", "down")
    begun = time.monotonic()
    ended = other.wait()
    assert time.monotonic() - begun < 15
    assert ended.status == 1
    assert "has gone silent" in ended.block
    assert "start again, on all 2 nodes, each with its own --node-rank: paceline run --nnodes 2" in ended.block
    head.signal(signal.SIGTERM)
    assert head.wait().status == 143
