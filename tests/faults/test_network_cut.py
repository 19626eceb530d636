"""The cable of one host is pulled during training: nothing is closed, nothing is refused, packets vanish."""

from faults.stage import fault


@fault(
    "network cut during training",
    finding="agent-died",
    names=("silent", "network", "link"),
    num_hosts=2,
    limit_s=15,
    alike=False,
    options=("--node-timeout", "11"),
)
def test_each_side_says_that_the_other_has_gone_silent(stage):
    """They cannot tell each other: each names the side that it has lost."""
    stage.script()
    stage.launch()
    stage.all_up()
    stage.broken()
    stage.hosts[1].unplug()
