"""The disk of the run folder is full: before the start, while ranks train, or when they are started again."""

from faults.stage import fault

SMALL = "mkdir small && mount -t tmpfs -o size=600k tmpfs small && cd small && cp ../train.py ."
FILL = """
    if rank == 0:
        try:
            with open("fill", "wb", buffering=0) as file:
                while file.write(b"x" * 4096) == 4096:
                    pass
        except OSError:
            pass
        open("../filled", "w").close()
    while not os.path.exists("../filled"):
        time.sleep(0.01)
    os.chdir("..")
    print("x" * 100_000, flush=True)
    os.write(1, b"y" * 100_000)
"""


@fault(
    "disk of the run folder full at the start",
    finding="disk-full",
    names=("small/paceline-runs", "No space left on device"),
    status=0,
    mounts=True,
)
def test_a_disk_that_is_full_before_the_start(stage):
    stage.script(epochs=1, start="os.chdir('..')\nbroke()")
    stage.launch(before=SMALL + "; dd if=/dev/zero of=fill bs=1k 2>/dev/null || true")


@fault(
    "folder of --run-dir on a full disk",
    finding="disk-full",
    names=("small/mine", "No space left on device"),
    status=2,
    mounts=True,
)
def test_a_named_folder_on_a_full_disk(stage):
    stage.script(epochs=1)
    stage.launch(
        before=SMALL + "; dd if=/dev/zero of=fill bs=1k 2>/dev/null || true", run_dir="mine"
    )


@fault("disk of the run folder fills up", finding="", status=0, mounts=True)
def test_a_disk_that_fills_up_ends_nothing(stage):
    stage.script(epochs=1, start=FILL)
    (launched,) = stage.launch(before=SMALL)
    stage.wait_for_line(launched, "cannot be written: No space left on device")
    stage.wait(60)
    assert sum("notice:" in line.text for line in launched.err) == 1


@fault(
    "exception of a rank on a full disk",
    finding="script-error-on-one-rank",
    names=("rank 1", "ValueError: bad label", "train.py"),
    mounts=True,
)
def test_an_exception_on_a_full_disk(stage):
    stage.script(
        start=FILL,
        step='if rank == 1 and step == 3:\n    broke()\n    raise ValueError("bad label")',
    )
    stage.launch(before=SMALL)


@fault(
    "crash of a rank on a full disk",
    finding="rank-segfault",
    names=("rank 1", "train.py"),
    mounts=True,
)
def test_a_crash_on_a_full_disk(stage):
    stage.script(
        start=FILL,
        step="if rank == 1 and step == 3:\n    broke()\n    import ctypes; ctypes.string_at(0)",
    )
    stage.launch(before=SMALL)


@fault(
    "restart on a full disk",
    finding="",
    status=0,
    mounts=True,
)
def test_ranks_are_started_again_on_a_full_disk(stage):
    stage.script(
        epochs=1,
        start=FILL,
        step='if rank == 1 and step == 3 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":\n'
        '    raise ValueError("bad label")',
    )
    (launched,) = stage.launch(before=SMALL, max_restarts=1)
    stage.wait_for_line(launched, "ranks were started again (1 of 1)")
