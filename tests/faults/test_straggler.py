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
        epochs=100,
        settings="begin = time.time()",
        step="""
        if step == 3:
            broke()
        time.sleep(0.06 if rank == 1 else 0.02)
        done = torch.tensor(float(time.time() - begin > 42))
        dist.all_reduce(done)
        if done:
            break
        """,
        epoch="if done:\n    break",
    )
    stage.launch()
