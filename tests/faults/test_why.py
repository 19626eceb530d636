"""Runs of plain torchrun hang, and `paceline why` says who waits for whom; a healthy run is not accused."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from faults import stage as stages
from faults.stage import START_S
from paceline.launch.monitor import child_stacks
from printed_json import read_json

SECONDS = 5
PLACE = r"\btrain\.py:\d+"

pytestmark = [
    pytest.mark.timeout(2 * START_S + 30),
    pytest.mark.skipif(not child_stacks.find_py_spy(), reason="needs py-spy"),
]


@pytest.fixture
def stage(tmp_path):
    with stages.stage(tmp_path, program="torchrun") as made:
        made.framework = "raw"
        yield made
        for launcher in made.launched:  # a rank that hangs may not take a signal
            end(launcher.pid)


def end(pid):
    """End a launcher and all below it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        launcher = psutil.Process(pid)
        everybody = [launcher, *launcher.children(recursive=True)]
        for process in everybody:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(everybody, timeout=5)


def why(*words, seconds=SECONDS, status=0):
    """Return what `paceline why --json` says of the one run that it finds."""
    command = [
        sys.executable,
        "-m",
        "paceline",
        "why",
        "--json",
        "--seconds",
        str(seconds),
        *map(str, words),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == status, ended.stdout + ended.stderr
    (run,) = read_json("why", ended.stdout)["runs"]
    return run


def text_of(run):
    finding = run["finding"] or {}
    return "\n".join(
        [
            run["notice"]["what"],
            *run["notice"]["details"],
            finding.get("what", ""),
            *finding.get("evidence", ()),
        ]
    )


def launched(stage, *broken, **options):
    """Start the script under torchrun and wait until ranks have left that it is broken."""
    (launcher,) = stage.launch(**options)
    for name in broken:
        stage.wait_for(name)
    time.sleep(1)
    return launcher


def assert_hangs(stage, launcher, name, *patterns, verdict="stands", status=0):
    """Look, and see that the run is as it was before."""
    ranks = {each.pid for each in psutil.Process(launcher.pid).children()}
    run = why(launcher.pid, status=status)
    assert run["verdict"] == verdict, text_of(run)
    assert run["finding"]["name"] == name, text_of(run)
    for pattern in patterns:
        assert re.search(pattern, text_of(run)), f"{pattern}\n{text_of(run)}"
    assert not launcher.ended()
    assert {each.pid for each in psutil.Process(launcher.pid).children()} == ranks


def test_a_rank_that_sleeps(stage):
    stage.script(step="if rank == 1 and step == 5:\n    broke()\n    time.sleep(600)")
    launcher = launched(stage, "broke-1")
    assert_hangs(
        stage, launcher, "rank-stuck-in-code", r"rank 1 .*time\.sleep", PLACE, "rank 0.*waits"
    )


def test_a_healthy_run_is_said_to_be_moving(stage):
    stage.script()
    launched(stage, "up-0", "up-1")
    run = why(stage.up(1))  # any process of the run names it
    assert run["verdict"] == "moving", text_of(run)
    assert run["finding"] is None


@pytest.mark.slow
def test_a_rank_that_computes_while_others_wait_is_not_accused(stage):
    stage.script(
        step="if rank == 0 and step == 5:\n    broke()\n    while True:\n        torch.ones(99, 99).sum()"
    )
    launcher = launched(stage, "broke-0")
    run = why(launcher.pid)
    assert run["verdict"] == "waits" and run["finding"] is None, text_of(run)
    assert re.search(rf"rank 1 waits for rank 0, which works[\s\S]*{PLACE}", text_of(run))


@pytest.mark.slow
def test_a_rank_that_is_slow_in_python_is_not_accused(stage):
    """It wakes now and then: a loop that polls, as for a file of another job."""
    stage.script(
        step="if rank == 0 and step == 5:\n    broke()\n    while True:\n        time.sleep(0.5)"
    )
    launcher = launched(stage, "broke-0")
    run = why(launcher.pid)
    assert run["verdict"] == "waits" and run["finding"] is None, text_of(run)


@pytest.mark.slow
def test_a_rank_that_is_stuck_in_its_dataset(stage):
    stage.script(
        settings="count = 0",
        sample="global count\ncount += 1\nif rank == 1 and count > 50:\n    broke()\n    time.sleep(600)",
    )
    launcher = launched(stage, "broke-1")
    assert_hangs(stage, launcher, "rank-stuck-in-data", "rank 1", PLACE, "rank 0.*waits")


@pytest.mark.slow
def test_a_rank_whose_worker_is_stuck(stage):
    stage.script(
        settings="workers = 2\ncount = 0",
        sample="global count\ncount += 1\nif rank == 1 and count > 20:\n    broke()\n    time.sleep(600)",
    )
    launcher = launched(stage, "broke-1")
    assert_hangs(stage, launcher, "rank-stuck-in-data", "rank 1", PLACE)


@pytest.mark.slow
def test_a_rank_that_was_stopped(stage):
    stage.script()
    (launcher,) = stage.launch()
    stage.all_up()
    os.kill(stage.up(1), signal.SIGSTOP)
    time.sleep(1)
    try:
        assert_hangs(
            stage, launcher, "rank-stuck-in-code", r"rank 1 is stopped \(state T\)", "rank 0"
        )
    finally:
        os.kill(stage.up(1), signal.SIGCONT)


@pytest.mark.slow
def test_ranks_in_different_collectives(stage):
    stage.script(
        step="""
        if step == 5:
            numbers = torch.ones(3)
            broke()
            if rank == 0:
                dist.all_reduce(numbers)
            else:
                dist.broadcast(numbers, 1)
                dist.barrier()
        """
    )
    launcher = launched(stage, "broke-0", "broke-1")
    assert_hangs(
        stage,
        launcher,
        "collective-mismatch",
        "all_reduce.*" + PLACE,
        "b(arrier|roadcast).*" + PLACE,
    )


@pytest.mark.slow
def test_a_collective_for_rank_0_only(stage):
    stage.script(
        epochs=1,
        epoch="if rank == 0:\n    broke()\n    dist.all_reduce(torch.ones(1))\ndist.barrier()",
    )
    launcher = launched(stage, "broke-0")
    assert_hangs(stage, launcher, "conditional-collective", "rank 0", "if rank == 0", PLACE)


@pytest.mark.slow
def test_a_rank_that_has_ended_early(stage):
    """With a third rank that keeps the sockets open, gloo does not notice it."""
    stage.script(
        start="if rank == 2:\n    broke()\n    os._exit(0)",
        epochs=1,
    )
    launcher = launched(stage, "broke-2", nproc_per_node=3)
    assert_hangs(
        stage, launcher, "rank-ended-early", "rank 2 .*has ended", "ranks 0-1", "_group, " + PLACE
    )


@pytest.mark.slow
def test_unequal_batches(stage):
    stage.script(
        settings="shared = False\nlength = 48 if rank == 1 else 64",
        epoch="if rank == 1:\n    broke()\ndist.barrier()",
    )
    launcher = launched(stage, "broke-1")
    assert_hangs(
        stage,
        launcher,
        "uneven-inputs",
        r"rank 1 left the loop of train.py:\d+-\d+, and rank 0 is still in",
    )


@pytest.mark.slow
def test_what_hosts_have_collected_is_judged_together(stage, tmp_path):
    stage.script(step="if rank == 1 and step == 5:\n    broke()\n    time.sleep(600)")
    launched(stage, "broke-1")
    collected = subprocess.run(
        [sys.executable, "-m", "paceline", "why", "--collect", str(stage.up(0))],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    values = json.loads(collected.stdout)
    for rank in (0, 1):  # as two hosts would have written them
        accounts = [each for each in values["accounts"] if each["position"]["rank"] == rank]
        (tmp_path / f"host-{rank}.json").write_text(json.dumps({**values, "accounts": accounts}))
    both = why(tmp_path / "host-0.json", tmp_path / "host-1.json")
    assert both["finding"]["name"] == "rank-stuck-in-code"
    alone = why(tmp_path / "host-0.json")
    assert alone["finding"] is None
    assert "rank 1 is not on the hosts that were looked at" in text_of(alone)


@pytest.mark.slow
def test_a_proof_by_torchs_flight_recorder(stage):
    """Where the script has opened torch's worker server: sizes differ, so that no rank can ever continue."""
    stage.script(
        start="""
        from torch.distributed.elastic.control_plane import _worker_server
        server = _worker_server(os.environ["TORCH_WORKER_SERVER_SOCKET"])
        server.__enter__()
        """,
        step="""
        if step == 5:
            broke()
            if rank == 0:
                dist.barrier()
            else:
                dist.all_reduce(torch.ones(3))
        """,
    )
    stage.write(
        "one.py",
        "import os, sys\n"
        "os.environ['TORCH_WORKER_SERVER_SOCKET'] = os.path.abspath(os.environ['RANK'] + '.sock')\n"
        "os.execv(sys.executable, [sys.executable, 'train.py'])\n",
    )
    launcher = launched(stage, "broke-0", "broke-1", script="one.py")
    assert_hangs(
        stage,
        launcher,
        "collective-mismatch",
        "barrier #",
        "all_reduce #.*3 elements",
        verdict="proven",
        status=1,
    )
