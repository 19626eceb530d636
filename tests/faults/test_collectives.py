"""Ranks do not meet in the same collective: another one, one for rank 0 only, validation on rank 0 only."""

from faults.stage import FRAMEWORKS, fault

HANG = {"limit_s": 10}
PLACE = r"train\.py:\d+"


TWO_LINES = """
if step == 5:
    numbers = torch.ones(3)
    broke()
    if rank == 0:
        dist.all_reduce(numbers)
    else:
        dist.broadcast(numbers, 1)
"""


@fault(
    "different collectives",
    finding="collective-mismatch",
    names=("rank 0", "rank 1", r"all_reduce.*train\.py:\d+|train\.py:\d+.*all_reduce", "broadcast"),
    frameworks=FRAMEWORKS,
    **HANG,
)
def test_two_lines(stage):
    stage.script(step=TWO_LINES)
    stage.launch()


@fault(
    "a collective for rank 0 only",
    finding="conditional-collective",
    names=("rank 0", PLACE, "all_reduce"),
    frameworks=FRAMEWORKS,
    **HANG,
)
def test_in_a_block_of_rank_0(stage):
    stage.script(
        step="""
        if rank == 0 and step == 5:
            broke()
            total = torch.ones(1)
            dist.all_reduce(total)
        """
    )
    stage.launch()


@fault(
    "a barrier for rank 0 only, at the end",
    finding="conditional-collective",
    names=("rank 0", PLACE, "barrier"),
    frameworks=FRAMEWORKS,
    **HANG,
)
def test_a_barrier_in_a_block_of_rank_0(stage):
    stage.script(epochs=1, epoch="if rank == 0:\n    broke()\n    dist.barrier()")
    stage.launch()


@fault(
    "validation on rank 0 only, its score summed over ranks",
    finding="conditional-collective",
    names=("rank 0", PLACE),
    frameworks=("raw", "fabric", "accelerate"),
    **HANG,
)
def test_validation_on_rank_0(stage):
    stage.script(
        model="net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))",
        epoch="""
        if rank == 0:
            model.eval()
            with torch.no_grad():
                correct = sum((model(x).argmax(1) == y).sum() for x, y in DataLoader(samples, 64))
            model.train()
            broke()
            dist.all_reduce(correct)
        """,
    )
    stage.launch()


@fault(
    "a metric that rank 0 alone logs with sync_dist",
    finding="conditional-collective",
    names=("rank 0", PLACE),
    frameworks=("lightning",),
    **HANG,
)
def test_a_metric_of_rank_0(stage):
    stage.script(
        loss="""
        if self.trainer.is_global_zero and step >= 5:
            broke()
            self.log("loss", loss, sync_dist=True, on_step=True)
        """
    )
    stage.launch()


BARRIERS = {
    "raw": ("dist.all_reduce(total)", "dist.barrier()"),
    "fabric": ("fabric.all_reduce(total)", "fabric.barrier()"),
    "lightning": ("self.trainer.strategy.reduce(total)", "self.trainer.strategy.barrier()"),
    "accelerate": ("accelerator.reduce(total)", "accelerator.wait_for_everyone()"),
}


@fault(
    "rank 0 alone reduces, and the framework's barrier follows",
    finding="conditional-collective",
    names=("rank 0", PLACE, "if rank == 0"),
    frameworks=FRAMEWORKS,
    **HANG,
)
def test_a_reduction_of_rank_0_before_a_barrier(stage):
    """The barrier of the other ranks takes the number of the reduction: gloo is silent, both wait for 30 minutes."""
    reduces, barrier = BARRIERS[stage.framework]
    stage.script(
        epochs=1,
        epoch=f"""
        if rank == 0:
            total = torch.ones(1)
            broke()
            {reduces}
        {barrier}
        """,
    )
    stage.launch()


@fault(
    "validation on rank 0 only through the wrapped model, and a barrier",
    finding="conditional-collective",
    names=("rank 0", PLACE),
    frameworks=FRAMEWORKS,
    **HANG,
)
def test_validation_on_rank_0_before_a_barrier(stage):
    _, barrier = BARRIERS[stage.framework]
    stage.script(
        epochs=1,
        model="net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))",
        epoch=f"""
        if rank == 0:
            broke()
            wrapped = self.trainer.model if "self" in locals() else model
            for x, y in DataLoader(samples if "samples" in locals() else Samples(), 64):
                wrapped(x)
        {barrier}
        """,
    )
    stage.launch()


@fault(
    "an all-reduce of different sizes that one rank survives",
    finding="collective-mismatch",
    names=("all_reduce", "2 elements", "3 elements", PLACE),
    frameworks=FRAMEWORKS,
    **HANG,
)
def test_sizes_that_one_rank_survives(stage):
    """gloo takes two elements for three on one rank, which goes on and waits in the next collective."""
    stage.script(step="if step == 5:\n    broke()\n    dist.all_reduce(torch.ones(2 + rank))")
    stage.launch()


@fault(
    "different collectives, on two hosts",
    finding="collective-mismatch",
    names=("rank 0", "rank 1", "host-a", "host-b", "all_reduce", "broadcast", PLACE),
    num_hosts=2,
    **HANG,
)
def test_two_lines_on_two_hosts(stage):
    stage.script(step=TWO_LINES)
    stage.launch()
