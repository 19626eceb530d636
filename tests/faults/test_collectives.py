"""Ranks do not meet in the same collective: another one, one for rank 0 only, validation on rank 0 only."""

from faults.stage import FRAMEWORKS, fault

HANG = {"limit_s": 5 + 10, "options": ("--hang-timeout", "5")}
PLACE = r"train\.py:\d+"


@fault(
    "different collectives",
    finding="collective-mismatch",
    names=("rank 0", "rank 1", r"all_reduce.*train\.py:\d+|train\.py:\d+.*all_reduce", "broadcast"),
    frameworks=FRAMEWORKS,
    **HANG,
)
def test_two_lines(stage):
    stage.script(
        step="""
        if step == 5:
            numbers = torch.ones(3)
            broke()
            if rank == 0:
                dist.all_reduce(numbers)
            else:
                dist.broadcast(numbers, 1)
        """
    )
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
