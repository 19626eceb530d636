"""What is no readable text is said in one line, and no text is too long or too broken to be read."""

from __future__ import annotations

import io
import random
import time

import pytest

from paceline.diagnose.explain import explain, judge, reading
from paceline.errors import UsageError
from refusals import refusal
from unit.diagnose.explain.test_texts import TEXTS

LINE = b"n1:71:120 [0] NCCL INFO Channel 00/0 : 0[9b000] -> 1[9e000] via P2P/IPC/read\n"
FAULT = b"RuntimeError: CUDA error: uncorrectable ECC error encountered\n"


def refused(subject):
    finding = refusal(UsageError, explain, str(subject))
    assert finding.name == "input-unreadable"
    return finding


def test_a_missing_file_is_said(tmp_path):
    assert "none.log does not exist" in refused(tmp_path / "none.log").what


def test_a_mistyped_name_gets_the_nearest_one():
    finding = refused("port-in-uze")
    assert "neither a file nor a finding" in finding.what
    assert "port-in-use" in finding.fix


def test_a_mistyped_code_gets_the_nearest_one():
    assert "NET0" in refused("NET0O1").fix


def test_a_folder_is_said(tmp_path):
    assert "is a folder" in refused(tmp_path).what
    (tmp_path / "sweep.json").touch()
    assert f"paceline jobs {tmp_path}" in refused(tmp_path).fix


@pytest.mark.parametrize("subject", ["a\0b", "x" * 5000])
def test_a_name_that_cannot_be_one_is_said(subject):
    refused(subject)


@pytest.mark.parametrize(
    "content", [bytes(5000), b"\x7fELF\x02\x01\x01" + bytes(300), random.Random(0).randbytes(9000)]
)
def test_a_binary_file_is_said(tmp_path, content):
    path = tmp_path / "core"
    path.write_bytes(content)
    assert "not text" in refused(path).what


@pytest.mark.parametrize("content", [b"", b"\n\n", b"  \n\r\n"])
def test_an_empty_file_has_no_error(tmp_path, content):
    path = tmp_path / "run.log"
    path.write_bytes(content)
    answer = explain(str(path))
    assert answer.findings[0].name == "no-error-in-log"
    assert answer.exit_status == 0


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_encodings_are_read(tmp_path, encoding):
    path = tmp_path / "run.log"
    path.write_bytes(f"épochs\n{FAULT.decode()}".encode(encoding))
    assert explain(str(path)).findings[0].name == "gpu-hardware-error"


def test_standard_input_is_read(monkeypatch):
    class Input:
        buffer = io.BytesIO(FAULT)

    monkeypatch.setattr("sys.stdin", Input)
    assert explain("-").exit_status == 1


class Endless(io.RawIOBase):
    """One line of many megabytes, then a fault."""

    def __init__(self, num_chunks):
        self.left = num_chunks

    def read(self, size=-1):
        self.left -= 1
        if self.left > 0:
            return b"x" * size
        return b"\n" + FAULT if self.left == 0 else b""


def test_a_line_without_end_is_cut():
    lines = [
        line for some in reading.split(reading.chunks(Endless(200), "-")) for line in some if line
    ]
    assert [len(line) < 2_000_000 for line in lines] == [True, True]
    assert lines[1] == FAULT.rstrip()


def test_pieces_cut_lines_anywhere():
    text = LINE * 50 + FAULT
    for size in (1, 7, 64, 1000):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        assert [line for some in reading.split(pieces) for line in some] == text.split(b"\n")[:-1]


@pytest.mark.parametrize("part", ["x", "7", "a ", "x."])
def test_a_message_of_megabytes_takes_no_more_than_its_beginning(tmp_path, part):
    path = tmp_path / "run.log"
    path.write_text(f"Traceback (most recent call last):\nValueError: {part * 2_000_000}\n")
    start_s = time.process_time()
    assert explain(str(path)).findings[0].name == "user-exception"
    path.write_text(part * 2_000_000)
    explain(str(path))
    assert time.process_time() - start_s < 5  # each took 14 to 60 s


def test_many_lines_of_one_kind_are_read_fast(tmp_path):
    path = tmp_path / "nccl.log"
    path.write_bytes(LINE * 200_000 + FAULT + LINE * 1000)
    start = time.monotonic()
    answer = explain(str(path))
    assert answer.findings[0].name == "gpu-hardware-error"
    assert time.monotonic() - start < 5


def test_random_text_never_fails():
    dice = random.Random(1)
    words = " ".join(text for _, text, *_ in TEXTS.values()).split(" ")
    for _ in range(150):
        judge([" ".join(dice.choices(words, k=80))]).render()


def test_random_bytes_never_fail():
    dice = random.Random(2)
    for size in (1, 10, 100, 3000):
        for _ in range(30):
            judge([dice.randbytes(size).decode("latin-1")]).render()


@pytest.mark.parametrize(
    "key",
    ["user-chained", "own-report", "summary", "worker-error", "elastic-timeout-json", "in-place"],
)
def test_a_text_may_be_cut_anywhere(key):
    text = TEXTS[key][1]
    for place in range(
        len(key), len(text), 13
    ):  # 13 falls on every column of a line sooner or later
        assert judge([text[:place]]).findings
        assert judge([text[place:]]).to_json()["findings"]


def test_mixed_lines_of_all_texts_never_fail():
    dice = random.Random(3)
    lines = [line for _, text, *_ in TEXTS.values() for line in text.splitlines()]
    for _ in range(20):
        dice.shuffle(lines)
        answer = judge(lines)
        assert answer.exit_status == 1
        assert all(len(line) <= 320 for finding in answer.findings for line in finding.evidence)
