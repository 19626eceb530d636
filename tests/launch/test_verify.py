"""``paceline verify`` on scripts of every framework: right ones are not accused, mistakes are named."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from printed_json import read_json
from starting import BIN
from verify_cases import MISTAKES, NEEDED, OTHERS, RIGHT, cases

pytestmark = [pytest.mark.cold, pytest.mark.timeout(300)]
EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = Path(__file__).parents[1] / "healthy" / "programs"
# What may be not judged in some right scripts
UNKNOWN = {
    "raw-plain": set(),
    "session-plain": set(),
    "bag-sparse-gradients": {"loss", "updates"},
}
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def verify(command, *words):
    return command.run("verify", *words, program=str(BIN / "paceline"), timeout=280, env=ONE_THREAD)


def verified(command, case):
    """Verify the script of a case; return what is printed as JSON."""
    if importlib.util.find_spec(NEEDED.get(case.framework, "torch")) is None:
        pytest.skip(f"{NEEDED[case.framework]} is not installed")
    ended = verify(command, "--json", *case.options, command.script(case.text, "train.py"))
    assert ended.status in (0, 1), ended.err
    answer = read_json("verify", ended.out)
    assert answer["failures"] == []
    assert ended.status == bool(names(answer))
    return answer


def states(answer, size=2):
    """The state of each property on a number of ranks."""
    worlds = {each["name"]: each["worlds"] for each in answer["properties"]}
    return {name: world[str(size)]["state"] for name, world in worlds.items() if str(size) in world}


def names(answer):
    """The names of the findings that are no hint."""
    return [found["name"] for found in answer["findings"] if found["severity"] != "hint"]


def named(table):
    """Cases as parameters of a test."""
    return pytest.mark.parametrize(
        "case", [pytest.param(each, id=each.id) for each in cases(table)]
    )


@pytest.mark.slow
@named(MISTAKES)
def test_a_classical_mistake_is_named(command, case):
    assert names(verified(command, case)) == [case.name]


@pytest.mark.slow
@named(OTHERS)
def test_a_mistake_is_named(command, case):
    assert names(verified(command, case)) == [case.name]


@pytest.mark.slow
@named(RIGHT)
def test_a_right_script_is_not_accused(command, case):
    answer = verified(command, case)
    assert names(answer) == []
    hints = {found["name"] for found in answer["findings"]}
    assert hints <= {"learning-rate-not-scaled", "dropout-same-mask"}
    for size in answer["worlds"][1:]:
        unknown = {name for name, state in states(answer, size).items() if state == "not judged"}
        assert unknown <= UNKNOWN.get(case.id, unknown)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "arguments"),
    [(EXAMPLES / "digits.py", ("--epochs", "2")), (PROGRAMS / "trainer_fit.py", ())],
    ids=["digits", "trainer"],
)
def test_the_library_s_own_programs_are_not_accused(command, path, arguments):
    ended = verify(command, "--json", path, *arguments)
    assert ended.status == 0, ended.out + ended.err
    assert read_json("verify", ended.out)["findings"] == []


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["missing.py"], "script-missing"),
        (["--world", "two", "train.py"], "option-invalid"),
        (["--steps", "1", "train.py"], "option-invalid"),
        (["--timeout", "soon", "train.py"], "option-invalid"),
        (["--batch-option", "--batch-size=8", "train.py"], "option-invalid"),
        (["--global-batch", "8", "train.py"], "option-contradicted"),
    ],
)
def test_misuse(command, words, name):
    command.script("")
    ended = verify(command, *words)
    assert ended.status == 2, ended.err
    assert name in ended.err
    assert "Traceback" not in ended.err


def test_a_script_that_fails_on_every_number_of_ranks_is_reported(command):
    ended = verify(command, "--world", "1", command.script("raise ValueError('no data')"))
    assert ended.status == 1
    assert "trial-failed" in ended.err
    assert "no data" in ended.err


def test_a_script_without_a_step_is_no_success(command):
    ended = verify(command, "--world", "1", command.script("print('hello')"))
    assert ended.status == 1
    assert "trial-without-steps" in ended.err
    assert ended.out == ""
