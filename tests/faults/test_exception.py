"""A rank raises an exception of the script's own."""

from faults.stage import FRAMEWORKS, fault

RAISES = "if rank == 1 and step == 5:\n    broke()\n    raise ValueError('bad label 12')"


@fault(
    "exception on one rank",
    finding="script-error-on-one-rank",
    names=("rank 1", "ValueError: bad label 12", r"train\.py:\d+"),
    frameworks=FRAMEWORKS,
)
def test_here(stage):
    stage.script(step=RAISES)
    stage.launch()


@fault(
    "recursion without an end in a script of 8,000 lines",
    finding="script-error-on-one-rank",
    names=("rank 1", "RecursionError", r"train\.py:\d+ in again: again"),
)
def test_of_a_thousand_frames(stage):
    unused = "".join(f"def unused_{number}(x):\n    return x\n" for number in range(4000))
    recursion = "def again(number):\n    again(number + 1)\n"
    stage.script(
        settings=unused + recursion, step="if rank == 1 and step == 5:\n    broke()\n    again(0)"
    )
    stage.launch()


@fault(
    "exception on one rank of the other host",
    finding="script-error-on-one-rank",
    names=("rank 1", "host-b", "ValueError: bad label 12", r"train\.py:\d+"),
    num_hosts=2,
    frameworks=FRAMEWORKS,
)
def test_on_the_other_host(stage):
    stage.script(step=RAISES)
    stage.launch()


@fault(
    "exception on one rank while the other is busy outside of a collective",
    finding="script-error-on-one-rank",
    names=("rank 1", "ValueError: bad label 12", r"train\.py:\d+"),
    frameworks=FRAMEWORKS,
)
def test_while_the_other_is_busy(stage):
    stage.script(step=f"{RAISES}\nif rank == 0 and step == 5:\n    time.sleep(600)")
    stage.launch()
