"""The hosts do not agree on who they are or how many: a missing, a superfluous, a double node, two sizes."""

from faults.stage import START_S, fault

SHORT = ("--roll-call-timeout", "8")


@fault(
    "missing node",
    finding="node-missing",
    names=("node 1", "2"),
    num_hosts=2,
    limit_s=11,
    options=SHORT,
)
def test_a_node_does_not_come(stage):
    stage.script()
    stage.start(0)


@fault(
    "missing node, of three",
    finding="node-missing",
    names=("node 2", "3"),
    num_hosts=3,
    limit_s=11,
    options=SHORT,
)
def test_one_of_three_nodes_does_not_come(stage):
    stage.script()
    stage.start(0)
    stage.start(1)


@fault(
    "missing head",
    finding={0: "port-refused"},
    names=("host-a|10.77.0.1", "29500", "refuse|nothing listens"),
    num_hosts=2,
    limit_s=11,
    options=SHORT,
)
def test_the_head_does_not_come(stage):
    stage.script()
    stage.start(1)


@fault(
    "two nodes with the same node rank",
    finding="duplicate-ranks",
    names=("node rank 1", "host-b", "host-c"),
    num_hosts=3,
    limit_s=10,
    options=SHORT,
)
def test_a_node_rank_is_given_twice(stage):
    stage.script()
    stage.start(0)
    stage.start(1)
    stage.start(2, node_rank=1)


@fault(
    "two nodes with node rank 0",
    finding="duplicate-ranks",
    names=("node rank 0", "host-a", "host-b"),
    num_hosts=2,
    limit_s=10,
)
def test_a_second_head(stage):
    stage.script()
    stage.start(0)
    stage.start(1, node_rank=0)


@fault(
    "hosts disagree on --nnodes",
    finding="world-size-mismatch",
    names=("nnodes 2|nnodes=2", "nnodes 3|nnodes=3", "host-a", "host-b"),
    num_hosts=2,
    limit_s=10,
    options=SHORT,
)
def test_two_numbers_of_nodes(stage):
    stage.script()
    stage.start(0, nnodes=2)
    stage.start(1, nnodes=3)


def third_comes(stage, **options):
    """Let two hosts begin, and a third come while they train; they go on when it has been turned away."""
    stage.script(
        epochs=2,
        start="leave(f'here-{rank}', 1)\nwhile not os.path.exists('over'):\n    time.sleep(0.05)",
    )
    for number in range(2):
        stage.start(number, nnodes=2, **options)
    for rank in range(2):
        stage.wait_for(f"here-{rank}")
    stage.start(2, nnodes=2, **options).running.process.wait(START_S)
    stage.write("over", "")


TOO_MANY = {
    "finding": {2: "extra-node"},
    "names": {2: ("host-c|node 2|this node", "2")},
    "status": {0: 0, 1: 0, 2: 1},
    "num_hosts": 3,
    "limit_s": 10,
    "options": SHORT,
}


@fault(
    "a node too many",
    **TOO_MANY
    | {
        "finding": {2: "option-invalid"},
        "names": {2: ("node-rank 2", "nnodes 2")},
        "status": {0: 0, 1: 0, 2: 2},
    },
)
def test_the_run_of_the_two_goes_on_without_the_third(stage):
    third_comes(stage)


@fault("a node too many, c10d", **TOO_MANY)
def test_a_third_node_without_a_rank(stage):
    """Which two begin is decided by who comes first."""
    third_comes(
        stage,
        master_addr=None,
        master_port=None,
        node_rank=None,
        rdzv_backend="c10d",
        rdzv_endpoint=f"{stage.hosts[0].address}:29400",
    )
