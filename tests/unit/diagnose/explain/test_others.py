"""Logs of other frameworks and of compressed files, and how many ranks met a fault."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import subprocess

import pytest

from paceline.diagnose.explain import explain, judge
from paceline.errors import UsageError
from refusals import refusal
from unit.diagnose.explain.test_texts import TEXTS

TEXT = (
    "step 1\n" * 5000 + "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
).encode()


@pytest.mark.parametrize("key", ["jax", "tensorflow", "jax-processes"])
def test_advice_for_another_framework_is_said_to_be_for_torch(key):
    assert "the advice is for PyTorch" in judge([TEXTS[key][1]]).findings[0].why


def test_a_log_of_torch_is_one_also_if_tensorflow_is_loaded():
    noise = "2026-01-01 10:00:00.1: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.\n"
    assert "PyTorch" not in judge([noise + TEXTS["illegal-access"][1]]).findings[0].why


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress)],
    ids=["gz", "xz", "bz2"],
)
@pytest.mark.parametrize("parts", [1, 2], ids=["", "rotated"])
def test_a_compressed_log_is_read(tmp_path, suffix, pack, parts):
    path = tmp_path / f"run.log.{suffix}"
    path.write_bytes(b"".join(pack(part) for part in (TEXT[:-2000], TEXT[-2000:])[2 - parts :]))
    assert explain(str(path)).findings[0].name == "gpu-hardware-error"


def test_a_compressed_log_is_read_to_where_it_breaks_off(tmp_path):
    path = tmp_path / "run.log.gz"
    path.write_bytes(gzip.compress(TEXT + bytes(range(32, 127)) * 50)[:-40])
    assert explain(str(path)).findings[0].name == "gpu-hardware-error"


def test_a_compressed_log_is_read_from_standard_input(monkeypatch):
    monkeypatch.setattr(
        "sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(gzip.compress(TEXT))))
    )
    assert explain("-").findings[0].name == "gpu-hardware-error"


@pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the program zstd")
def test_a_log_of_zstd_is_read(tmp_path):
    path = tmp_path / "run.log.zst"
    path.write_bytes(
        subprocess.run(["zstd", "-c"], input=TEXT, capture_output=True, check=True).stdout
    )
    assert explain(str(path)).findings[0].name == "gpu-hardware-error"


def test_a_log_of_zstd_that_cannot_be_read_gets_the_line_that_can(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "run.log.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(40))
    assert refusal(UsageError, explain, str(path)).fix == f"zstd -dc {path} | paceline explain -"


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU {} has a total capacity of 79.10 GiB\n"


def test_ranks_that_met_the_same_are_counted():
    text = "".join(f"[rank{rank}]: {OOM.format(rank)}" for rank in (4, 0, 1, 2, 3, 5, 6, 7))
    finding = judge([text]).findings[0]
    assert finding.what.startswith("GPU 4 (79.10 GiB) is out of memory")
    assert finding.what.endswith("; the same on 7 other ranks")


def test_devices_are_counted_where_no_rank_is_named():
    assert (
        judge(["".join(OOM.format(gpu) for gpu in range(2))])
        .findings[0]
        .what.endswith("on 1 other rank")
    )


def test_an_exception_of_several_ranks_is_counted_and_one_of_one_is_not():
    text = "".join(f"[rank{rank}]: ValueError: row {rank} is empty\n" for rank in range(4))
    assert judge([text]).findings[0].what.endswith("; the same on 3 other ranks")
    assert (
        "other"
        not in judge(["[rank0]: ValueError: row 0 is empty\n[rank1]: KeyError: 'x'\n"])
        .findings[0]
        .what
    )


BLOCK = """  time      : 2026-01-01_10:00:{second}
  host      : node-a
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: 12{rank})
  error_file: <N/A>
"""
FORCED = "W1 api.py:916] Unable to shutdown process 121 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL\n"


@pytest.mark.parametrize(
    ("before", "second", "code", "name"),
    [
        ("", "30", 1, "launcher-summary-only"),
        (FORCED, "31", 1, "launcher-summary-only"),
        ("", "01", 1, "rank-died-signal"),  # it may have run out of memory, and the other lost it
        ("", "30", -11, "rank-segfault"),
    ],
)
def test_a_rank_that_torchrun_killed_after_30_s_did_not_run_out_of_memory(
    before, second, code, name
):
    first = BLOCK.format(second="00", rank=0, code=code)
    later = BLOCK.format(second=second, rank=1, code=-9)
    text = f"{before}train.py FAILED\nFailures:\n[1]:\n{later}Root Cause (first observed failure):\n[0]:\n{first}"
    finding = judge(text.splitlines(keepends=True)).findings[0]
    assert finding.name == name
    assert ("rank 0" in finding.where) == (second != "01")


def test_a_damaged_time_in_the_table_says_nothing():
    text = "Root Cause (first observed failure):\n" + BLOCK.format(second="99", rank=0, code=1)
    assert judge(text.splitlines(keepends=True)).findings


@pytest.mark.parametrize(
    "message",
    ["TypeError: cannot pickle '_thread.lock' object", "AssertionError: expected 429, got 430"],
)
def test_what_ranks_do_not_share_is_not_said_to_be_done_at_once(message):
    text = "".join(f"[rank{rank}]: {message}\n" for rank in range(2))
    finding = judge([f"[rank0]: Traceback (most recent call last):\n{text}"]).findings[0]
    assert "at the same time" not in finding.why
