"""explain, lint and doctor as they are typed: streams, statuses, JSON, and a reader that goes away."""

from __future__ import annotations

import os
import subprocess

import pytest

from printed_json import read_json
from starting import BIN

OUT_OF_MEMORY = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/me/train.py", line 12, in <module>
[rank1]:     loss.backward()
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 23.6 GiB
"""
NO_SRUN = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=1:00:00
torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint $(hostname):29500 train.py
"""


def paceline(*args, stdin="", folder=None):
    return subprocess.run(
        [BIN / "paceline", *map(str, args)],
        input=stdin,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_a_log_is_read_from_a_pipe():
    ended = paceline("explain", "-", stdin=OUT_OF_MEMORY)
    assert ended.returncode == 1, ended.stderr
    assert "cuda-oom" in ended.stdout.splitlines()[0]


def test_the_same_as_data(tmp_path):
    (tmp_path / "run.log").write_text(OUT_OF_MEMORY)
    ended = paceline("explain", "--json", "run.log", folder=tmp_path)
    first = read_json("explain", ended.stdout)["findings"][0]
    assert first["name"] == "cuda-oom"
    assert {"code", "name", "severity", "what", "where", "evidence", "fix"} <= set(first)


def test_a_log_without_an_error_is_no_fault():
    assert paceline("explain", "-", stdin="epoch 1 loss 0.3\nepoch 2 loss 0.2\n").returncode == 0


@pytest.mark.parametrize("json_too", [False, True])
def test_what_cannot_be_read_is_refused_in_the_form_that_was_asked_for(tmp_path, json_too):
    ended = paceline("explain", *["--json"] * json_too, "no-such.log", folder=tmp_path)
    assert ended.returncode == 2
    assert "input-unreadable" in ended.stderr
    if json_too:
        assert read_json("explain", ended.stdout)["findings"][0]["name"] == "input-unreadable"


def test_a_job_script_is_linted(tmp_path):
    (tmp_path / "job.sbatch").write_text(NO_SRUN)
    ended = paceline("lint", "--json", "job.sbatch", folder=tmp_path)
    assert ended.returncode == 1, ended.stderr
    found = {each["name"]: each for each in read_json("lint", ended.stdout)["findings"]}
    assert found["missing-srun"]["where"].startswith("job.sbatch:7")


def test_a_script_that_is_right_is_no_fault(tmp_path):
    (tmp_path / "job.sbatch").write_text(NO_SRUN.replace("torchrun", "srun torchrun"))
    assert paceline("lint", "job.sbatch", folder=tmp_path).returncode == 0


def test_the_doctor_answers_here(tmp_path):
    ended = paceline("doctor", "--json", folder=tmp_path)
    told = read_json("doctor", ended.stdout)
    assert set(told) == {"findings", "facts"}
    assert ended.returncode == int(any(each["severity"] == "error" for each in told["findings"]))


def test_a_reader_that_goes_away_is_no_traceback():
    line = f"{BIN}/paceline explain NET001 | true; {BIN}/paceline lint {__file__} | true"
    ended = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=50, check=False
    )
    assert ended.stderr == ""


def test_what_the_terminal_cannot_show_is_shown_by_its_number():
    log = (
        'Traceback (most recent call last):\n  File "/h/ü.py", line 5, in <module>\nValueError: ö\n'
    )
    line = [BIN / "paceline", "explain", "-"]
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(
        line, input=log.encode(), env=environ, capture_output=True, timeout=50, check=False
    )
    assert b"ValueError: \\xf6" in ended.stdout
    assert ended.stderr == b""
