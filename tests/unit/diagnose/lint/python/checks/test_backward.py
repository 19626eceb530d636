"""A backward that leaves out what Accelerate does to the loss."""

import pytest

from unit.diagnose.lint.python.pairs import found
from unit.diagnose.lint.python.sources import ACCELERATE, FABRIC, RAW

NAME = "backward-not-accelerator"
STEP = "for batch in loader:\n    loss = net(batch)\n    {}\n    optimizer.step()\n"
OWN, PREPARED = STEP.format("loss.backward()"), STEP.format("accelerator.backward(loss)")


def made(arguments):
    return ACCELERATE.replace("Accelerator()", f"Accelerator({arguments})")


WRONG = {
    "accumulation": made("gradient_accumulation_steps=4") + OWN,
    "fp16": made("mixed_precision='fp16'") + OWN,
}
RIGHT = {
    "accumulation of an argument": made("gradient_accumulation_steps=args.n") + OWN,
    "precision of an argument": made("mixed_precision=args.precision, log_with='wandb'") + OWN,
    "by name": made("gradient_accumulation_steps=4")
    + STEP.format("accelerator.backward(loss=loss)"),
    "divided": made("gradient_accumulation_steps=4")
    + STEP.format("(loss / accelerator.gradient_accumulation_steps).backward()"),
    "accelerator": made("gradient_accumulation_steps=4") + PREPARED,
    "attribute": made("mixed_precision='fp16'")
    + PREPARED.replace("accelerator", "self.accelerator"),
    "both": made("gradient_accumulation_steps=4") + OWN + PREPARED,
    "as it is": ACCELERATE + OWN,
    "one batch": made("gradient_accumulation_steps=1") + OWN,
    "bf16": made("mixed_precision='bf16'") + OWN,
    "no precision": made("mixed_precision=None") + OWN,
    "other arguments": made("split_batches=True, cpu=args.cpu") + OWN,
    "ranks without Accelerate": RAW + OWN,
    "Fabric": FABRIC + OWN,
    "a function": made("gradient_accumulation_steps=4") + STEP.format("backward(loss)"),
}


@pytest.mark.parametrize("source", WRONG.values(), ids=WRONG)
def test_a_loss_that_is_not_scaled_is_found(source):
    assert NAME in found(source)


@pytest.mark.parametrize("source", RIGHT.values(), ids=RIGHT)
def test_a_loss_that_is_scaled_or_needs_nothing_is_left_alone(source):
    assert NAME not in found(source)
