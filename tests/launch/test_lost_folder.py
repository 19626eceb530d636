"""The run folder goes away, or cannot take anything more: a launcher's log ends no training."""

from __future__ import annotations

import os
import re

import pytest

from printed_json import read_json

pytestmark = pytest.mark.ci

# Rank 0 does what argv[1] says to the run folder, then both print a lot, and rank 1 does what argv[2] says.
SCRIPT = """
import os, shutil, sys, time, torch
from torch.distributed.elastic.multiprocessing.errors import record
rank, folder = int(os.environ["RANK"]), os.environ["PACELINE_RUN_DIR"]
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"

def main():
    open("up-" + str(rank), "w").close()
    while not os.path.exists("up-1"):
        time.sleep(0.01)
    if rank == 0 and first:
        {act}
        open("acted", "w").write("here\\n")
    while not os.path.exists("acted"):
        time.sleep(0.01)
    time.sleep(0.7)  # the launcher looks twice a second whether a log still has a name
    for number in range(200):
        print("line", number, flush=True)
    os.write(1, b"written by hand\\n")
    {then}

{main}
"""
# The launcher and the other rank may write into the folder while it is deleted.
DELETED = """place = os.path.dirname(folder)
        while os.path.exists(place):
            shutil.rmtree(place, ignore_errors=True)"""
FAILS = 'if rank == 1: raise ValueError("bad label")\n    time.sleep(5)'
RECORDED = "record(main)()"


def write(command, *, act=DELETED, then="pass", main="main()"):
    command.script(SCRIPT.format(act=act, then=then, main=main))


def test_a_run_whose_folder_is_deleted_succeeds_and_says_so_once(command):
    write(command)
    ended = command.run("--nproc-per-node", "2", "train.py")
    assert ended.status == 0, ended.err
    assert "written by hand\n" in ended.out
    assert ended.err.count("notice:") == 1
    assert f"the log folder {command.folder}/paceline-runs/" in ended.err
    assert not (command.folder / "paceline-runs").exists()


@pytest.mark.parametrize("main", ["main()", RECORDED], ids=["plain", "record"])
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_an_exception_reaches_the_report_although_the_folder_is_gone(command, method, main):
    write(command, then=FAILS, main=main)
    ended = command.run("--nproc-per-node", "2", "--start-method", method, "train.py")
    assert ended.status == 1
    assert "rank 1 raised ValueError: bad label   [RUN002" in ended.block, ended.err
    assert re.search(r"train\.py:\d+ in main", ended.block)


def test_a_crash_is_explained_although_the_folder_is_gone(command):
    write(command, then="if rank == 1: import ctypes; ctypes.string_at(0)\n    time.sleep(5)")
    ended = command.run("--nproc-per-node", "2", "train.py")
    assert "rank-segfault" in ended.block, ended.err
    assert re.search(r"train\.py:\d+ in main", ended.block)


def test_ranks_are_started_again_although_the_folder_is_gone(command):
    write(
        command,
        then='if rank == 1 and first: raise ValueError("bad label")\n    if first: time.sleep(5)',
    )
    ended = command.run("--nproc-per-node", "2", "--max-restarts", "1", "train.py")
    assert ended.status == 0, ended.err
    assert "bad label; ranks were started again (1 of 1)" in ended.err
    log = next(command.folder.glob("paceline-runs/*/logs/rank-001.attempt-1.out"))
    assert "written by hand\n" in log.read_text()


def test_with_torchs_layout_too(command):
    write(
        command,
        act='shutil.rmtree("logs")',
        then='if rank == 1 and first: raise ValueError("bad label")',
    )
    ended = command.run(
        "--nproc-per-node", "2", "--max-restarts", "1", "--log-dir", "logs", "train.py"
    )
    assert ended.status == 0, ended.err
    assert "bad label; ranks were started again (1 of 1)" in ended.err


def test_stacks_and_crashes_are_kept_in_the_folder(command):
    command.script("import ctypes; ctypes.string_at(0)")
    ended = command.run("train.py")
    assert "train.py" in (command.folder / ended.run_dir / "ranks" / "rank-000.crash").read_text()


CHDIR = """
import os, sys
os.mkdir("elsewhere")
os.chdir("elsewhere")
print(os.path.isabs(os.environ["TORCHELASTIC_ERROR_FILE"]), os.path.isabs(os.environ["PACELINE_RUN_DIR"]))
{raises}
"""
PLAIN = "raise ValueError('bad label')"
RECORD = """
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise ValueError('bad label')
main()
"""


@pytest.mark.parametrize("raises", [PLAIN, RECORD], ids=["plain", "record"])
@pytest.mark.parametrize(
    "options", [(), ("--run-dir", "mine"), ("--log-dir", "logs")], ids=["", "run-dir", "log-dir"]
)
def test_a_script_that_changes_its_directory_keeps_its_exception(command, raises, options):
    command.script(CHDIR.format(raises=raises))
    ended = command.run(*options, "train.py")
    assert ended.out == "True True\n"
    assert "rank 0 raised ValueError: bad label   [RUN001 user-exception]" in ended.block
    assert "first:" not in ended.block  # torch's own handler did not fail on top
    assert list((command.folder / "elsewhere").iterdir()) == []


def test_parameters_are_compared_in_a_script_that_changes_its_directory(command):
    command.script(
        "import os, torch, torch.distributed as dist\nfrom torch import nn\nrank = os.environ['RANK']\n"
        "os.mkdir(rank); os.chdir(rank); dist.init_process_group('gloo')\n"
        "model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + 0.1 * int(rank))\n"
        "for _ in range(4):\n    model(torch.ones(2)).sum().backward(); optimizer.step()\n"
    )
    ended = command.run("--nproc-per-node", "2", "--check-replicas", "1", "train.py")
    assert "replicas-differ" in ended.err, ended.err
    assert "has another lr of SGD" in ended.err  # names come from files of the ranks


HYDRA = """
import hydra, os
@hydra.main(version_base=None, config_path=None)
def main(config):
    print(os.getcwd() != os.environ["HERE"])
    raise ValueError("bad label")
main()
"""


@pytest.mark.slow
def test_hydra_with_a_working_directory_of_its_own(command):
    pytest.importorskip("hydra")
    command.script(HYDRA)
    ended = command.run(
        "train.py",
        "hydra.job.chdir=true",
        env={"HERE": str(command.folder), "HYDRA_FULL_ERROR": "1"},
    )
    assert ended.out == "True\n", ended.err
    assert "rank 0 raised ValueError: bad label" in ended.block


def test_the_null_device_as_log_folder_stays_a_device(command):
    """A rank's exception was once moved to the place of its error file, which torch's layout says is /dev/null."""
    command.script("raise ValueError('bad label')")
    ended = command.run("--log-dir", "/dev/null", "train.py")
    assert "rank 0 raised ValueError: bad label" in ended.block
    assert os.path.exists("/dev/null")
    assert not os.path.isfile("/dev/null")


def test_the_outcome_for_programs_is_whole_too(command):
    write(command, then=FAILS)
    ended = command.run("--nproc-per-node", "2", "--json", "train.py")
    assert [
        finding["name"] for finding in read_json("run", ended.out.splitlines()[-1])["findings"]
    ] == ["script-error-on-one-rank"]
