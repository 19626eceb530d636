"""A module that the script imports is not installed on one host."""

from faults.stage import FRAMEWORKS, fault


@fault(
    "import error on the other host",
    finding="module-not-found",
    names=("rank 1", "host-b", "No module named 'not_installed'", r"train\.py:\d+"),
    num_hosts=2,
)
def test_on_the_other_host(stage):
    stage.script(settings="if rank == 1:\n    broke()\n    import not_installed")
    stage.launch()


@fault(
    "import error on one rank",
    finding="module-not-found",
    names=("rank 1", "No module named 'not_installed'", r"train\.py:\d+"),
    frameworks=FRAMEWORKS,
)
def test_here(stage):
    stage.script(settings="if rank == 1:\n    broke()\n    import not_installed")
    stage.launch()
