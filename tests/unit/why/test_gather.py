"""Accounts from files, from the nodes of a Slurm job, and from hosts that ssh reaches; and what is said of none."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time

import pytest

from fake_slurm import FakeSlurm
from paceline import why
from paceline.errors import SetupError, UsageError
from paceline.launch.monitor import child_stacks
from paceline.launch.monitor.position import Frame, Position
from paceline.why import gather, processes, recorder, signalled
from paceline.why.gather import Collection
from paceline.why.identity import RankIdentity
from paceline.why.rank_state import RUNNING, Account
from refusals import refusal


def account(rank, *, job=""):
    position = Position(
        rank, f"node-{rank}", frames=(Frame("/home/me/train.py", 3, "main", user=True),)
    )
    return Account("run", 2, job=job, position=position, motion=RUNNING)


def test_files_of_two_hosts_are_one_run(tmp_path):
    for rank in (0, 1):
        (tmp_path / f"{rank}.json").write_text(gather.write(Collection([account(rank)])))
    found = why.why([str(tmp_path / "0.json"), str(tmp_path / "1.json")], seconds=1)
    assert [each.rank for each in found.runs[0].accounts] == [0, 1]


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[]",
        "{}",
        '{"paceline-why": 99, "accounts": []}',
        '{"paceline-why": 1, "accounts": [{}]}',
        "[" * 9999,
    ],
)
def test_a_file_that_holds_something_else_is_refused(tmp_path, text):
    path = tmp_path / "host.json"
    path.write_text(text)
    assert refusal(UsageError, why.why, [str(path)], seconds=1).name == "input-unreadable"


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    made = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{made.folder / 'bin'}:{os.environ['PATH']}")
    return made


def test_the_nodes_of_a_job_are_looked_at_by_a_step(slurm):
    slurm.answer("squeue", "2\n")
    others = gather.write(Collection([account(0, job="8")]))
    slurm.answer(
        "srun",
        "\n".join(
            [
                "Welcome!",
                *(gather.write(Collection([account(n, job="999999999")])) for n in (0, 1)),
                others,
            ]
        ),
    )
    found = why.why(["999999999"], seconds=1)
    assert [each.rank for each in found.runs[0].accounts] == [0, 1]
    (step,) = [
        json.loads(line)
        for line in (slurm.folder / "calls").read_text().splitlines()
        if '"srun"' in line
    ]
    assert {
        "--overlap",
        "--jobid=999999999",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--collect",
    } <= set(step)


def test_a_number_that_is_nothing_is_said_to_be_nothing(slurm):
    slurm.answer("squeue", "", status=1, err="slurm_load_jobs error: Invalid job id specified\n")
    finding = refusal(SetupError, why.why, ["999999999"], seconds=1)
    assert finding.name == "no-ranks-found"
    assert "Invalid job id" in finding.render()


def program(folder, name, text):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_a_host_is_looked_at_by_ssh_and_one_that_does_not_answer_is_named(tmp_path, monkeypatch):
    (tmp_path / "answer").write_text(gather.write(Collection([account(0)])) + "\n")
    program(
        tmp_path / "bin",
        "ssh",
        'case "$*" in *node-b*) echo "ssh: connect to host node-b: No route" >&2; exit 255;; esac\n'
        f"cat {tmp_path}/answer",
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    found = why.why(["node-a", "node-b"], seconds=1)
    assert [each.rank for each in found.runs[0].accounts] == [0]
    assert "not looked at: node-b: ssh: connect to host node-b: No route" in found.render()


@pytest.mark.parametrize("word", ["-oProxyCommand=true", "node a", "no/such/file.json", "a;b"])
def test_a_word_that_is_no_host_is_refused(word):
    with pytest.raises(UsageError):
        why.why([word], seconds=1)


def test_a_process_that_is_no_rank_is_said_to_be_none(slurm):
    finding = refusal(SetupError, why.why, [str(os.getpid())], seconds=1)
    assert f"process {os.getpid()}" in finding.render()


def start_rank(rank, world_size, code, folder, stderr=None, **more):
    environ = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": str(folder),
        "MASTER_PORT": "1",
    }
    words = [code] if code.endswith(".py") else ["-c", code]
    return subprocess.Popen(
        [sys.executable, *words], cwd=folder, env={**environ, **more}, stderr=stderr
    )


def test_processes_with_a_ranks_variables_are_looked_at_without_a_signal(tmp_path):
    """No torch in them, and a handler for every signal that would write a file: they are not touched."""
    code = (
        "import signal, time, pathlib\n"
        "for number in (10, 12, 61): signal.signal(number, lambda *_: pathlib.Path('signalled').touch())\n"
        "pathlib.Path('up').touch()\n"
        "time.sleep(600)\n"
    )
    process = start_rank(1, 2, code, tmp_path, LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    try:
        while not (tmp_path / "up").exists():
            time.sleep(0.01)
        found = why.why([str(process.pid)], seconds=1)
        assert process.poll() is None
        assert not (tmp_path / "signalled").exists()
        (run,) = found.runs
        assert {each.rank: each.position.ended for each in run.accounts} == {0: True, 1: False}
        assert run.accounts[1].position.pid == process.pid
    finally:
        process.kill()
        process.wait()


def test_a_dump_that_names_a_function_is_not_read(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "made"),))

    with pytest.raises(pickle.UnpicklingError):
        recorder.read(pickle.dumps(Evil()))
    assert not (tmp_path / "made").exists()


ENTRY = {
    "collective_seq_id": 5,
    "record_id": 0,
    "process_group": ("0", "default_pg"),
    "profiling_name": "nccl:all_reduce",
    "input_sizes": ((3,),),
    "retired": False,
    "timeout_ms": 600000,
}


def test_a_pipe_orders_a_dump(tmp_path):
    """As ProcessGroupNCCL keeps it: it reads the pipe of its rank, and writes the file."""
    os.mkfifo(tmp_path / "pipe1.pipe")
    (tmp_path / "dump1").write_bytes(pickle.dumps({"entries": ["of yesterday"]}))
    code = (
        "import pickle, sys\n"
        "open('pipe1.pipe').read(1)\n"
        f"open('dump1', 'wb').write(pickle.dumps({ {'entries': [ENTRY], 'pg_config': {}}!r}))\n"
    )
    rank = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    settings = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "pipe"),
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(tmp_path / "dump"),
    }
    told = RankIdentity("RANK", 1, 2, settings=settings)
    dumped = {}
    while not dumped and rank.poll() is None:
        dumped = recorder.dump(told)
    rank.wait()
    assert recorder.entries(dumped) == [ENTRY]
    assert recorder.members(dumped, world_size=2) == {"0": [0, 1]}


def test_a_rank_that_reads_no_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe1.pipe")
    told = RankIdentity(
        "RANK", 1, 2, settings={"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "pipe")}
    )
    assert recorder.dump(told) == {}


def test_groups_of_a_dump():
    dumped = {
        "entries": [],
        "pg_config": {"1": {"name": "1", "desc": "dp", "ranks": "[2, 0]"}, "": {"ranks": "[0]"}},
    }
    assert recorder.members(dumped, world_size=4) == {"1": [0, 2]}


def test_processes_of_others_are_left_out(monkeypatch):
    monkeypatch.setattr(processes, "is_own", lambda pid: False)
    assert processes.find() == []


REGISTERED = """
import faulthandler, signal, time, pathlib
faulthandler.register(signal.SIGUSR1, all_threads=True)
def wait():
    time.sleep(600)
pathlib.Path("up").touch()
wait()
"""


@pytest.fixture
def without_py_spy(monkeypatch):
    monkeypatch.setattr(child_stacks, "find_py_spy", lambda: "")


def test_a_rank_that_has_registered_faulthandler_writes_its_stack_where_its_user_says_so(
    tmp_path, without_py_spy
):
    (tmp_path / "train.py").write_text(REGISTERED)
    with (tmp_path / "stderr").open("w") as stderr:
        process = start_rank(0, 1, "train.py", tmp_path, stderr=stderr)
    try:
        while not (tmp_path / "up").exists():
            time.sleep(0.01)
        quiet = why.why([str(process.pid)], seconds=1).render()
        assert "py-spy is not installed" in quiet and 'pip install "paceline[why]"' in quiet
        assert (tmp_path / "stderr").read_text() == ""
        text = why.why([str(process.pid)], seconds=1, signal="USR1").render()
        assert "train.py:5" in text
        refused = why.why([str(process.pid)], seconds=1, signal="USR2").render()
        assert "does not catch SIGUSR2, so it was not sent" in refused
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", ["TERM", "INT", "9", "1", "KILL", "", "-1", "9" * 5000])
def test_a_signal_that_may_end_a_rank_has_no_number(name):
    assert signalled.number_of(name) == 0


def test_no_signal_that_may_end_a_rank_is_sent():
    with pytest.raises(UsageError):
        why.why([str(os.getpid())], seconds=1, signal="TERM")


def test_helpers_that_inherit_a_ranks_variables_are_no_ranks():
    code = "from multiprocessing.resource_tracker import main;main(3)"
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}
    words = [sys.executable, "-c", f"print(flush=True); import time; time.sleep(60) # {code}"]
    for command, expected in ((words, False), ([*words[:2], words[2].partition("#")[0]], True)):
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as helper:
            helper.stdout.readline()
            found = [each.pid for each in processes.find()]
            helper.kill()
        assert (helper.pid in found) is expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["/venv/bin/python", "/venv/bin/paceline", "run", "train.py"], True),
        (["python", "-m", "paceline", "run"], True),
        (["python", "train.py", "--name", "paceline"], False),
    ],
)
def test_launchers_of_ours_are_no_ranks(words, expected):
    assert processes.is_paceline(words) is expected
