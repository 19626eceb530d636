"""Exceptions that no signature knows get the advice of their kind, whatever library raised them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paceline.diagnose.explain import judge
from paceline.signatures.libraries import texts_of
from paceline.text import toml

CASES = toml.loads((Path(__file__).parent / "exceptions.toml").read_text(encoding="utf-8"))["case"]
ROWS = texts_of("exceptions")["row"]
INSTALLED = "/opt/lib/python3.10/site-packages/"


def log(case):
    """The log of a case: a frame of the user's, one of the library, and what was raised."""
    lines = ["Traceback (most recent call last):", '  File "/home/ada/train.py", line 9, in main']
    if case.get("own_code"):
        lines.append(f"    {case['own_code']}")
    if "at" in case:
        file, _, code = case["at"].partition(" ")
        file, _, function = file.partition(":")
        lines += [f'  File "{INSTALLED}{file}", line 7, in {function or "f"}', f"    {code}"]
    return "\n".join((*lines, case["error"]))


def told(case):
    text = log(case)
    if case.get("ranks"):
        text = "\n".join(f"[rank{rank}]: {line}" for rank in range(2) for line in text.splitlines())
    return judge([text]).findings[0]


def wanted(template):
    """A pattern for what a template may become."""
    return ".+".join(map(re.escape, re.split(r"\{\w+\}", template.replace("{{", "{"))))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["error"][:60])
def test_an_exception_gets_the_advice_of_its_kind(case):
    finding = told(case)
    assert finding.name == case.get("name", "user-exception")
    assert case["fix"] in finding.fix
    assert case.get("why", "") in finding.why


def test_every_row_is_met():
    fixes = [told(case).fix for case in CASES]
    unmet = [
        row["error"] or row["fix"][0]
        for row in ROWS
        if not any(re.fullmatch(wanted(text), fix) for text in row["fix"] for fix in fixes)
    ]
    assert unmet == []


def test_a_rank_whose_traceback_is_cut_has_the_same_fault():
    whole = {"error": "ValueError: no", "at": "torch/distributed/x.py:f raise ValueError("}
    cut = {"error": "ValueError: no"}
    lines = [f"[rank0]: {line}" for line in log(whole).splitlines()]
    lines += [f"[rank1]: {line}" for line in log(cut).splitlines()]
    answer = judge(["\n".join(lines)])
    assert [finding.name for finding in answer.findings] == ["library-exception"]


def test_an_assertion_without_a_message_is_quoted():
    case = {"error": "AssertionError", "own_code": "assert total == expected"}
    assert told(case).what == "AssertionError: assert total == expected"


def test_a_script_in_a_folder_bin_is_the_users_own():
    text = log({"error": "ValueError: no"}).replace("/home/ada/train.py", "asr/bin/train.py")
    assert judge([text]).findings[0].where == "asr/bin/train.py:9"


def broken(text, width):
    lines = text.splitlines()
    return "\n".join(
        line[start : start + width]
        for line in lines
        for start in range(0, max(len(line), 1), width)
    )


LONG = (
    'Traceback (most recent call last):\n  File "/home/ada/projects/speech/recipes/librispeech/'
    'conformer/train_distributed.py", line 184, in build_the_strategy\n    make()\nValueError: the'
    " strategy that was selected, which is named ddp_static_graph, does not exist in this version"
    " of the trainer. Please use one of the names that --list-strategies prints"
)


@pytest.mark.parametrize("width", [60, 72, 80])
def test_lines_that_a_terminal_broke_are_read_like_whole_ones(width):
    finding = judge([broken(LONG, width)]).findings[0]
    assert finding == judge([LONG]).findings[0]
    assert finding.where.endswith("/train_distributed.py:184")


@pytest.mark.parametrize(
    "text",
    [
        "=" * 80 + "\n" + "-" * 80 + "\n" + "#" * 80,
        "\n".join(f"{word * 20}"[:80] for word in ("abcd", "efgh", "ijkl")),
    ],
    ids=["rulers", "columns"],
)
def test_lines_of_one_width_stay_apart_from_an_error(text):
    whole = log({"error": "KeyError: 'scale'"})
    assert judge([f"{text}\n{whole}"]).findings[0] == judge([whole]).findings[0]
