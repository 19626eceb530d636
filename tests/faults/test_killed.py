"""A rank, or the launcher of a node, is killed with SIGKILL."""

import os
import signal

from faults.stage import FRAMEWORKS, fault


@fault(
    "SIGKILL of one rank",
    finding="rank-died-signal",
    names=("rank 1", "SIGKILL|signal 9"),
    frameworks=FRAMEWORKS,
)
def test_a_rank(stage):
    stage.script()
    stage.launch()
    pid = stage.up(1)
    stage.broken()
    os.kill(pid, signal.SIGKILL)


@fault(
    "SIGKILL of one rank of the other host",
    finding="rank-died-signal",
    names=("rank 1", "host-b", "SIGKILL|signal 9"),
    num_hosts=2,
)
def test_a_rank_of_the_other_host(stage):
    stage.script()
    stage.launch()
    pid = stage.up(1)
    stage.broken()
    os.kill(pid, signal.SIGKILL)


@fault(
    "SIGKILL of the launcher of the other host",
    finding="agent-died",
    names=("host-b|node 1", "silent|killed"),
    num_hosts=2,
    limit_s=15,
)
def test_the_other_hosts_launcher(stage):
    stage.script()
    _, other = stage.launch()
    stage.all_up()
    stage.broken()
    other.signal(signal.SIGKILL)


@fault(
    "SIGKILL of the head's launcher",
    finding="agent-died",
    names=("host-a|node 0|the head", "silent|gone|killed"),
    num_hosts=2,
    limit_s=15,
)
def test_the_heads_launcher(stage):
    stage.script()
    head, _ = stage.launch()
    stage.all_up()
    stage.broken()
    head.signal(signal.SIGKILL)


@fault("SIGKILL of the launcher, no process is left", finding="")
def test_the_only_launcher(stage):
    """Nobody is there to tell: its ranks must end."""
    stage.script()
    (launcher,) = stage.launch()
    stage.all_up()
    stage.broken()
    launcher.signal(signal.SIGKILL)
