"""Ranks read the same samples, or the same order in every epoch: nothing fails, the result is worse."""

from faults.stage import FRAMEWORKS, fault


@fault(
    "the same data on all ranks",
    finding="same-data-on-all-ranks",
    names=("ranks 0-1|all ranks", "same"),
    status=0,
    frameworks=FRAMEWORKS,
)
def test_a_sampler_is_forgotten(stage):
    stage.script(epochs=3, settings="shared = False", data="broke()")
    stage.launch()


@fault(
    "the same order in each epoch",
    finding="same-order-each-epoch",
    names=("order", "set_epoch"),
    status=0,
)
def test_set_epoch_is_forgotten(stage):
    """Only where the script owns the sampler: the frameworks call set_epoch themselves."""
    stage.script(epochs=3, without=("if shared:", "sampler.set_epoch(epoch)"), data="broke()")
    stage.launch()
