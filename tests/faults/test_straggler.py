"""One host is slower than the others, steadily."""

from faults.stage import fault


@fault(
    "straggler",
    finding="straggler",
    names=("host-b", r"[2-9]\.\d"),
    status=0,
    num_hosts=2,
    limit_s=45,
    timeout_s=120,
)
def test_one_host_is_slow(stage):
    """It is told after three windows of 10 s."""
    stage.script(
        epochs=50,  # of 8 steps
        step="""
        if step == 3:
            broke()
        time.sleep(0.1 if rank == 1 else 0.03)
        """,
    )
    stage.launch()
