"""One node was given another port than the head."""

from faults.stage import fault


@fault(
    "wrong port on one node",
    finding={0: "node-missing", 1: "port-refused"},
    names={0: ("node 1", "29501"), 1: ("host-a|10.77.0.1", "29501", "refuse|nothing listens")},
    num_hosts=2,
    limit_s=11,
    options=("--roll-call-timeout", "8"),
)
def test_a_node_knocks_at_another_port(stage):
    stage.script()
    stage.start(0)
    stage.start(1, master_port=29501)
