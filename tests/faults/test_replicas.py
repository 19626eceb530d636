"""The replicas have drifted apart: a rank has changed its parameters behind DDP's back."""

from faults.stage import FRAMEWORKS, fault


@fault(
    "drifted replicas, --check-replicas 10",
    finding="replicas-differ",
    names=("rank", "weight|bias"),
    status=0,
    frameworks=FRAMEWORKS,
    options=("--check-replicas", "10"),
)
def test_a_rank_changes_a_parameter(stage):
    stage.script(
        epochs=6,
        step="""
        if rank == 1 and step == 5:
            broke()
            with torch.no_grad():
                next(model.parameters()).add_(0.1)
        """,
    )
    stage.launch()
