"""Ranks hand different models to DDP."""

from faults.stage import FRAMEWORKS, fault


@fault(
    "another width on one rank",
    finding="ddp-model-mismatch",
    names=("rank 1", "33"),
    frameworks=FRAMEWORKS,
)
def test_another_width(stage):
    stage.script(
        model="""
        broke()
        if rank == 1:
            net = nn.Sequential(nn.Linear(16, 33), nn.ReLU(), nn.Linear(33, 4))
        """
    )
    stage.launch()


@fault(
    "another number of parameters on one rank",
    finding="ddp-model-mismatch",
    names=("rank 1", "6", "4"),
    frameworks=FRAMEWORKS,
)
def test_another_number_of_parameters(stage):
    stage.script(
        model="""
        broke()
        if rank == 1:
            net = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 4))
        """
    )
    stage.launch()
