"""Ranks have different numbers of batches, and one of them waits for gradients that nobody sends."""

from faults.stage import FRAMEWORKS, fault

EXPECTED = {
    "finding": "uneven-inputs",
    "names": ("rank 1", r"\b6\b"),
    "frameworks": FRAMEWORKS,
    "limit_s": 10,
}
UNEVEN = "shared = False\nlength = 48 if rank == 1 else 64"
ENDS = "if rank == 1:\n    broke()"


@fault("uneven batches, a collective after them", **EXPECTED)
def test_with_validation_after(stage):
    stage.script(settings=UNEVEN, epoch=f"{ENDS}\ndist.all_reduce(torch.ones(1))")
    stage.launch()


@fault("uneven batches, nothing after them", **EXPECTED)
def test_with_nothing_after(stage):
    stage.script(epochs=1, settings=UNEVEN, epoch=ENDS)
    stage.launch()


@fault(
    "uneven batches, Lightning's validation after them",
    **{**EXPECTED, "frameworks": ("lightning",)},
)
def test_with_lightnings_validation_after(stage):
    stage.script(
        settings=UNEVEN,
        data="""
        samples = Samples()
        fit = trainer.fit

        def validate(self, batch, batch_idx):
            if rank == 1:
                broke()
            self.log("score", self.net(batch[0]).mean(), sync_dist=True)

        Classifier.validation_step = validate
        trainer.fit = lambda module, train: fit(module, train, DataLoader(samples, 8))
        """,
    )
    stage.launch()
