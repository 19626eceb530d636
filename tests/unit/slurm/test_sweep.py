"""The elements of a sweep: which there are, with which values, and what the script gets."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from paceline.errors import UsageError
from paceline.rundir.sweeps import MOST_ELEMENTS
from paceline.slurm import batch, request
from paceline.slurm.batch import JobPlace
from paceline.slurm.profile import Profile
from paceline.slurm.sweep import definition, sweep_submit
from refusals import refusal

POINTS = definition.from_command_line(["lr=0.1,0.001", "width=64,128,256"])


@pytest.mark.parametrize(
    ("typed", "indices", "limit", "text"),
    [
        ("0-3", (0, 1, 2, 3), 0, "0-3"),
        ("0-49%8", tuple(range(50)), 8, "0-49%8"),
        ("1,3,5-9:2", (1, 3, 5, 7, 9), 0, "1,3,5,7,9"),
        ("7,0-2,1%1", (0, 1, 2, 7), 1, "0-2,7%1"),
        ("%4", None, 4, ""),
    ],
)
def test_an_array_is_read_and_written_as_sbatch_does(typed, indices, limit, text):
    assert definition.parse_array(typed) == (indices, limit)
    assert indices is None or definition.array_text(indices, limit) == text


@pytest.mark.parametrize(
    "typed", ["", "a", "3-1", "0-3%", "0-3%0", "0-3:0", "1,,2", "-1", "0-3%x", "0-99999999"]
)
def test_what_is_no_array_is_refused_with_an_example(typed):
    assert refusal(UsageError, definition.parse_array, typed).fix == "--array 0-49%8"


def test_a_grid_has_every_combination_and_the_last_parameter_varies_fastest():
    assert [tuple(point.values()) for point in POINTS] == [
        *(("0.1", "64"), ("0.1", "128"), ("0.1", "256")),
        *(("0.001", "64"), ("0.001", "128"), ("0.001", "256")),
    ]


def test_a_grid_that_is_too_large_is_refused():
    words = ["a=range(101)", "b=range(101)"]
    finding = refusal(UsageError, definition.from_command_line, words)
    assert f"at most {MOST_ELEMENTS:,}" in finding.what


@pytest.mark.parametrize(
    ("arguments", "filled"),
    [
        ((), ("--lr", "0.1", "--name", "x")),
        (("--lr={lr}",), ("--lr=0.1", "--name", "x")),
        (("lr={lr}", "out/{name}-{index}"), ("lr=0.1", "out/x-4")),
        (("{{lr}}", "--json", '{"a": {lr}}', "{name}"), ("{lr}", "--json", '{"a": 0.1}', "x")),
        (("{}", "{ lr }", "{name}", "{lr}"), ("{}", "{ lr }", "x", "0.1")),
    ],
    ids=str,
)
def test_placeholders_are_filled_and_other_parameters_appended(arguments, filled):
    assert definition.filled(arguments, {"lr": "0.1", "name": "x"}, index=4) == filled


def test_a_negative_value_is_no_option():
    assert definition.filled((), {"shift": "-1"}, index=0) == ("--shift=-1",)


def test_a_placeholder_without_a_value_is_refused():
    finding = refusal(UsageError, definition.filled, ("{lrr}",), {"lr": "1"}, index=0)
    assert (finding.name, finding.fix) == ("sweep-invalid", "{lr}")
    finding = refusal(UsageError, definition.choose, ("--lr", "{lr}"), None, array="0-3")
    assert "--param lr=A,B" in finding.fix


def test_an_array_chooses_among_the_elements_of_a_sweep():
    chosen = definition.choose((), POINTS, array="1,4-5%3")
    assert [element.index for element in chosen.elements] == [1, 4, 5]
    assert chosen.elements[1].arguments == ("--lr", "0.001", "--width", "128")
    assert chosen.array == "1,4-5%3"
    assert definition.choose((), POINTS).array == "0-5"
    assert definition.choose((), POINTS, array="%1").array == "0-5%1"
    finding = refusal(UsageError, definition.choose, (), POINTS, array="0-6")
    assert finding.fix == "--array 0-5"


def test_an_array_alone_has_its_index():
    chosen = definition.choose(("--fold", "{index}"), None, array="2-3")
    assert [element.arguments for element in chosen.elements] == [("--fold", "2"), ("--fold", "3")]
    assert "names no elements" in refusal(UsageError, definition.choose, (), None, array="%3").what


@pytest.mark.parametrize("typed", ["lr", "lr=", "lr=1,,2", "=1", "1x=2", "index=1", "l r=1"])
def test_a_typed_parameter_is_a_name_and_values(typed):
    assert refusal(UsageError, definition.from_command_line, [typed]).fix == "--param lr=0.1,0.01"


def test_typed_parameters_are_a_grid():
    made = definition.from_command_line(["lr=0.1,1", "name=a"])
    assert made == [{"lr": "0.1", "name": "a"}, {"lr": "1", "name": "a"}]
    assert (
        refusal(UsageError, definition.from_command_line, ["lr=1", "lr=2"]).fix == "--param lr=1,2"
    )


LISTS = {
    "[1e-5, 1e-4]": ["1e-5", "1e-4"],
    '["adam", "sgd, fused"]': ["adam", "sgd, fused"],
    "[[1, 2], [3], (4, 5)]": ["[1, 2]", "[3]", "(4, 5)"],
    "range(1, 7, 2)": ["1", "3", "5"],
    "hi :)": ["hi :)"],
    "[1e-5, 1e-4": None,
    "1e-5, 1e-4]": None,
    "(0.9,0.99)": None,
    "range(0)": None,
}


@pytest.mark.parametrize(("typed", "texts"), LISTS.items())
def test_a_list_or_a_range_is_several_values_and_half_a_list_is_refused(typed, texts):
    if texts is None:
        finding = refusal(UsageError, definition.from_command_line, [f"p={typed}"])
        assert definition.from_command_line([finding.fix.removeprefix("--param ")])
    else:
        assert [element["p"] for element in definition.from_command_line([f"p={typed}"])] == texts


@pytest.mark.parametrize(
    ("typed", "arguments", "expected"),
    [
        (("lr=1,2",), (), ""),
        (("lr=1,2,1,1",), (), "2 of 4 elements have the arguments of another: element 2 those of"),
        (("lr=1,2,1",), ("--lr", "{lr}", "--out", "{index}"), ""),
    ],
)
def test_elements_with_the_same_arguments_are_said(capsys, typed, arguments, expected):
    sweep_submit.choose({"param": typed}, arguments)
    said = capsys.readouterr().err
    assert expected in said
    assert bool(said) == bool(expected)


NASTY = ["two words", "it's", 'a "b"', "$(touch broken-out)", "`x`", "back\\slash", "#", ";", "ü"]


def test_bash_gives_each_element_its_arguments(tmp_path):
    """The job script as bash runs it, up to the first command of Slurm."""
    made = [{"text": text} for text in NASTY]
    requested = request.parse("train.py", (), typed={}, profile=Profile())
    requested = replace(requested, sweep=definition.choose(("--x={text}",), made))
    place = JobPlace(
        str(tmp_path), "/runs/s", "/runs/s/job.sh", "/runs/s/slurm.out", ("paceline",), ""
    )
    text = batch.render(requested, place)
    assert f"#SBATCH --array=0-{len(NASTY) - 1}\n" in text
    assert "#SBATCH --output=/runs/s/%a/slurm.out\n" in text
    head = text.partition("# this script runs on the first node")[0]
    for index, expected in enumerate(NASTY):
        script = f'{head}\nprintf \'%s\\n\' "$run_dir" "${{program[@]}}"'
        printed = subprocess.run(
            ["bash", "-c", script],
            env={"SLURM_ARRAY_TASK_ID": str(index), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert printed.stdout.splitlines() == [f"/runs/s/{index}", "train.py", f"--x={expected}"]
    assert not (tmp_path / "broken-out").exists()
