"""A rank hangs where the others do not: in its data, or in code of the script's own."""

from faults.stage import FRAMEWORKS, fault

HANG = {"limit_s": 5 + 10, "options": ("--hang-timeout", "5")}
PLACE = r"train\.py:\d+"


@fault(
    "hang in data loading",
    finding="rank-stuck-in-data",
    names=("rank 1", PLACE, r"for \d+"),
    frameworks=FRAMEWORKS,
    **HANG,
)
def test_in_the_dataset(stage):
    stage.script(
        settings="count = 0",
        sample="""
        global count
        count += 1
        if rank == 1 and count > 50:
            broke()
            time.sleep(600)
        """,
    )
    stage.launch()


@fault(
    "hang in data loading, in a worker",
    finding="rank-stuck-in-data",
    names=("rank 1", PLACE, r"for \d+"),
    frameworks=FRAMEWORKS,
    **HANG,
)
def test_in_a_worker(stage):
    stage.script(
        settings="workers = 2\ncount = 0",
        sample="""
        global count
        count += 1
        if rank == 1 and count > 20:
            broke()
            time.sleep(600)
        """,
    )
    stage.launch()


@fault(
    "hang in data loading on the other host",
    finding="rank-stuck-in-data",
    names=("rank 1", "host-b", PLACE, r"for \d+"),
    num_hosts=2,
    **HANG,
)
def test_on_the_other_host(stage):
    stage.script(
        settings="count = 0",
        sample="""
        global count
        count += 1
        if rank == 1 and count > 50:
            broke()
            time.sleep(600)
        """,
    )
    stage.launch()


@fault(
    "hang in user code: it sleeps",
    finding="rank-stuck-in-code",
    names=("rank 1", PLACE, r"for \d+"),
    frameworks=FRAMEWORKS,
    **HANG,
)
def test_it_sleeps(stage):
    stage.script(step="if rank == 1 and step == 5:\n    broke()\n    time.sleep(600)")
    stage.launch()


@fault(
    "hang in user code: a busy loop on rank 0",
    finding="rank-stuck-in-code",
    names=("rank 0", PLACE, r"for \d+"),
    frameworks=FRAMEWORKS,
    **HANG,
)
def test_it_loops(stage):
    stage.script(step="if rank == 0 and step == 5:\n    broke()\n    while True:\n        pass")
    stage.launch()


@fault(
    "hang in user code, and --on-hang report",
    finding={0: "stopped-by-signal"},
    names=("SIGTERM",),
    status=143,
    limit_s=25,
    options=("--hang-timeout", "5", "--on-hang", "report"),
)
def test_it_is_only_reported(stage):
    """The run waits on; here until somebody ends it."""
    stage.script(step="if rank == 1 and step == 5:\n    broke()\n    time.sleep(600)")
    (launcher,) = stage.launch()
    moment = stage.wait_for("broke-1")
    said = stage.wait_for_line(launcher, "rank-stuck-in-code")
    assert said.time_s - float(moment) < 15
    assert not launcher.ended()
    launcher.signal(15)
