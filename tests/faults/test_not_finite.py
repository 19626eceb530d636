"""The loss of one rank is NaN: its gradients poison all replicas."""

from faults.stage import FRAMEWORKS, fault


@fault(
    "NaN loss on one rank, --check-finite",
    finding="non-finite-on-one-rank",
    names=("rank 1", "step 5|step 6", "nan|finite"),
    frameworks=FRAMEWORKS,
    options=("--check-finite",),
)
def test_a_loss_is_nan(stage):
    stage.script(loss="if rank == 1 and step == 5:\n    broke()\n    loss = loss * float('nan')")
    stage.launch()
