"""The script is run as ``__main__`` exactly as ``python -u script.py`` under torchrun would run it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from starting import METHODS

pytestmark = pytest.mark.ci

SCRIPTS = Path(__file__).parent / "scripts"


def reports(command, *args, program="paceline", name, stdin=None, env=None, cwd=None):
    """Run env_report.py on two ranks; return what each saw."""
    folder = command.folder / name
    folder.mkdir()
    ended = command.run(
        "--nproc-per-node",
        "2",
        *args,
        program=program,
        stdin=stdin,
        env={"OMP_NUM_THREADS": "1", **(env or {})},
        cwd=cwd,
    )
    assert ended.status == 0, ended.err
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


# Chosen anew for every run, or listed as a departure: the address is numeric.
_VARIES = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}


def comparable(report, folder):
    values = {name: value for name, value in report["env"].items() if name not in _VARIES}
    argv = [str(word).replace(str(folder), "FOLDER") for word in report["argv"]]
    return {**report, "env": values, "argv": argv}


# torchrun starts a multiprocessing child with --run-path, and leaves its own folder first in sys.path
_OF_A_CHILD = (
    *("path0", "has_no_parent_process", "own_process_group", "is_main_module", "sigint", "sigterm"),
    *("stdout_write_through", "stdout_line_buffering"),
)


@pytest.mark.cold
@pytest.mark.timeout(240)  # up to four starts, each of which may take 50 s
@pytest.mark.parametrize(
    ("target", "methods"),
    [
        ([SCRIPTS / "env_report.py"], ["fork", "spawn", "exec"]),
        (["-m", "env_report"], ["fork"]),
        (["--run-path", SCRIPTS / "env_report.py"], ["fork"]),
    ],
    ids=["script", "module", "run-path"],
)
def test_a_rank_sees_what_it_sees_under_torchrun(command, target, methods):
    cwd = SCRIPTS if "-m" in target else None
    words = ["--standalone", *target, command.folder / "torchrun"]
    there = reports(command, *words, program="torchrun", name="torchrun", cwd=cwd)
    for method in methods:
        typed = [] if method == "fork" else ["--start-method", method]
        words = ["--run-dir", command.folder / f"run-{method}", *typed, *target]
        here = reports(command, *words, command.folder / method, name=method, cwd=cwd)
        for mine, theirs in zip(here, there, strict=True):
            assert set(theirs["env"]) <= set(mine["env"])
            mine = comparable(mine, command.folder / method)
            theirs = comparable(theirs, command.folder / "torchrun")
            if "--run-path" in target:
                mine, theirs = (
                    {name: value for name, value in report.items() if name not in _OF_A_CHILD}
                    for report in (mine, theirs)
                )
            assert mine == theirs, method
        assert here[0]["env"]["MASTER_ADDR"] == "127.0.0.1"


@pytest.mark.cold
def test_standard_input_reaches_the_script(command):
    (command.folder / "in.txt").write_text("first line\nsecond line\n")
    seen = []
    for program, extra in (("torchrun", ["--standalone"]), ("paceline", [])):
        with (command.folder / "in.txt").open() as stdin:
            folder = command.folder / program
            found = reports(
                command,
                *extra,
                SCRIPTS / "env_report.py",
                folder,
                "stdin",
                program=program,
                name=program,
                stdin=stdin,
            )
        seen.append(sorted(report["stdin_line"] for report in found))
    assert seen[0] == seen[1]
    assert "first line\n" in seen[1]


def test_script_arguments_are_never_parsed(command):
    script = command.script("import sys; print(sys.argv[1:])")
    ended = command.run(
        "train.py", "--nproc-per-node", "7", "-m", "--unknown", "--", "--json", "-h"
    )
    assert ended.status == 0, ended.err
    assert ended.out == "['--nproc-per-node', '7', '-m', '--unknown', '--', '--json', '-h']\n"
    assert script.exists()


ENDINGS = """
import atexit, os, sys, threading, time, multiprocessing
rank = int(os.environ["RANK"])
atexit.register(print, "atexit ran", flush=True)
kept_open = open(f"unflushed-{rank}", "w")
kept_open.write("written without a close")

class Last:
    def __del__(self):
        os.write(1, b"module torn down\\n")

last = Last()

def work():
    time.sleep(0.5)
    print("thread ended", flush=True)

threading.Thread(target=work).start()
print("script ended", flush=True)
sys.exit()
"""


@pytest.mark.cold
def test_threads_atexit_handlers_and_open_files_are_seen_to_the_end(command):
    command.script(ENDINGS)
    ended = command.run("--nproc-per-node", "2", "train.py")
    assert ended.status == 0, ended.err
    assert ended.out.splitlines() == [
        "script ended",
        "thread ended",
        "atexit ran",
        "module torn down",
    ]
    assert (command.folder / "unflushed-0").read_text() == "written without a close"
    assert (command.folder / "unflushed-1").read_text() == "written without a close"


@pytest.mark.cold
@pytest.mark.parametrize("method", METHODS)
def test_loader_workers_of_the_scripts_own_classes(command, method):
    ended = command.run("--nproc-per-node", "2", SCRIPTS / "loader_workers.py", method)
    assert ended.status == 0, ended.err
    assert ended.out.splitlines()[-1] == "workers ok"


@pytest.mark.parametrize("program", ["torchrun", "paceline"])
def test_random_numbers_differ_between_ranks(command, program):
    command.script(
        "import os, random, numpy, torch\n"
        "line = f'{random.random()} {numpy.random.rand()} {torch.rand(1).item()}\\n'\n"
        "open('seen-' + os.environ['RANK'], 'w').write(line)\n"
    )
    extra = ["--standalone"] if program == "torchrun" else []
    assert command.run(*extra, "--nproc-per-node", "2", "train.py", program=program).status == 0
    first, second = ((command.folder / f"seen-{rank}").read_text().split() for rank in range(2))
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_the_local_rank_is_filled_in_as_torchrun_does(command):
    command.script(
        "import os, sys; open('seen-' + os.environ['RANK'], 'w').write(repr(sys.argv[1:]))"
    )
    assert (
        command.run("--nproc-per-node", "2", "train.py", "--gpu=${local_rank}", "$other").status
        == 0
    )
    assert (command.folder / "seen-1").read_text() == "['--gpu=1', '$other']"


def test_a_program_that_is_not_python(command):
    ended = command.run(
        "--nproc-per-node", "2", "--no-python", "sh", "-c", 'echo "rank $RANK of $WORLD_SIZE"'
    )
    assert ended.status == 0, ended.err
    assert ended.out == "rank 0 of 2\n"
    assert (command.folder / ended.run_dir / "logs" / "rank-001.out").read_text() == "rank 1 of 2\n"


def test_a_folder_or_archive_with_a_main_module(command):
    package = command.folder / "tool"
    package.mkdir()
    (package / "__main__.py").write_text("import sys; print('main of', sys.argv)")
    ended = command.run("tool", "word")
    assert ended.status == 0, ended.err
    assert ended.out == "main of ['tool', 'word']\n"


@pytest.mark.cold
def test_variables_that_torch_reads_at_import_are_obeyed(command):
    command.script(
        "import os\nos.environ['OMP_NUM_THREADS'] = '2'\nimport torch\nprint(torch.get_num_threads())"
    )
    ended = command.run("--nproc-per-node", "2", "train.py")
    assert ended.out == "2\n"
    assert "spawn (the script sets OMP_NUM_THREADS" in ended.err


def test_pet_variables_are_defaults_and_the_command_line_wins(command):
    command.script("import os; print(os.environ['WORLD_SIZE'])")
    env = {"PET_NPROC_PER_NODE": "3", "PET_STANDALONE": "1"}
    assert command.run("train.py", env=env).out == "3\n"
    assert command.run("--nproc-per-node", "2", "train.py", env=env).out == "2\n"


def test_a_terminal_stays_a_terminal_and_its_size_is_passed_on(command):
    command.script(
        "import os, sys\nprint(sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size().columns)\n"
        "print('to stderr', file=sys.stderr)\n"
    )
    typed = f"stty cols 91; {command_path('paceline')} run --run-dir out train.py"
    shown = subprocess.run(
        ["script", "-qec", typed, "/dev/null"],
        cwd=command.folder,
        capture_output=True,
        text=True,
        timeout=50,
        stdin=subprocess.DEVNULL,
        check=True,
    ).stdout
    assert "True True 91\nto stderr\n" in shown
    assert (command.folder / "out/logs/rank-000.out").read_text() == "True True 91\nto stderr\n"


def command_path(name):
    import sys

    return Path(sys.executable).parent / name
