"""A worker of a DataLoader is killed, or raises."""

from faults.stage import FRAMEWORKS, fault

WORKERS = "workers = 2"


@fault(
    "DataLoader worker raises",
    finding="script-error-on-one-rank",
    names=("rank 1", "DataLoader worker", "OSError: cannot decode sample", r"train\.py:\d+"),
    frameworks=FRAMEWORKS,
)
def test_it_raises(stage):
    stage.script(
        settings=WORKERS,
        sample="if rank == 1 and index > 20:\n    broke()\n    raise OSError(f'cannot decode sample {index}')",
    )
    stage.launch()


@fault(
    "DataLoader worker is killed",
    finding="script-error-on-one-rank",
    names=("rank 1", "DataLoader worker", "killed|SIGKILL"),
    frameworks=FRAMEWORKS,
)
def test_it_is_killed(stage):
    stage.script(
        settings=WORKERS,
        sample="if rank == 1 and index > 20:\n    broke()\n    os.kill(os.getpid(), 9)",
    )
    stage.launch()
