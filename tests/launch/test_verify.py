"""``paceline verify`` on scripts of every framework: right ones are not accused, mistakes are named."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from starting import BIN

pytestmark = pytest.mark.cold
SCRIPTS = Path(__file__).parent / "scripts" / "verify"
EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = Path(__file__).parents[1] / "healthy" / "programs"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
TRAINING_LIMIT_S = 280


def verify(command, *words):
    return command.run(
        "verify", *words, program=str(BIN / "paceline"), timeout=TRAINING_LIMIT_S, env=ONE_THREAD
    )


def verified(command, script, *words, options=()):
    """Run a script of this folder, and return what is printed as JSON."""
    framework = script.partition("with_")[2]
    needed = {"fabric": "lightning", "session": "torch", "": "torch"}.get(framework, framework)
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    path = command.script((SCRIPTS / f"{script}.py").read_text(), f"{script}.py")
    ended = verify(command, "--json", *options, path, *words)
    assert ended.status in (0, 1), ended.err
    return json.loads(ended.out)


def states(answer, size=2):
    """The state of each property on a number of ranks."""
    worlds = {each["name"]: each["worlds"] for each in answer["properties"]}
    return {name: world[str(size)]["state"] for name, world in worlds.items()}


def names(answer):
    """The names of the findings that are no hint."""
    return [found["name"] for found in answer["findings"] if found["severity"] != "hint"]


@pytest.mark.timeout(300)
def test_a_right_script_keeps_everything_with_the_same_global_batch(command):
    option = ("--batch-option", "--batch-size={per_rank}")
    answer = verified(command, "native", options=option)
    assert answer["failures"] == []
    assert set(states(answer).values()) == {"kept"}
    assert answer["findings"] == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("script", "mistake", "name"),
    [
        ("native", "no-sampler", "sampler-missing"),
        ("native", "no-set-epoch", "same-order-each-epoch"),
        ("native", "padded", "evaluation-padded"),
        ("native", "own-share", "evaluation-not-reduced"),
        ("native", "scheduler", "scheduler-stepped-n-times"),
        ("native", "drift", "replicas-differ"),
        ("native", "other-seeds", "initialisation-differs"),
        ("with_fabric", "no-sampler", "sampler-missing"),
        ("with_fabric", "padded", "evaluation-padded"),
        ("with_fabric", "own-share", "evaluation-not-reduced"),
        ("with_fabric", "drift", "replicas-differ"),
        ("with_fabric", "other-seeds", "initialisation-differs"),
        ("with_lightning", "padded", "evaluation-padded"),
        ("with_lightning", "drift", "replicas-differ"),
        ("with_accelerate", "scheduler", "scheduler-stepped-n-times"),
        ("with_accelerate", "padded", "evaluation-padded"),
        ("with_accelerate", "own-share", "evaluation-not-reduced"),
    ],
)
def test_a_mistake_is_named(command, script, mistake, name):
    assert names(verified(command, script, "--mistake", mistake)) == [name]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_gradients_that_are_added_are_named(command):
    option = ("--batch-option", "--batch-size={per_rank}")
    answer = verified(command, "native", "--mistake", "sum-of-gradients", options=option)
    assert names(answer) == ["updates-differ"]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", ["with_fabric", "with_lightning", "with_accelerate"])
def test_a_right_script_is_not_accused(command, script):
    answer = verified(command, script)
    assert names(answer) == []
    assert [found["name"] for found in answer["findings"]] == ["learning-rate-not-scaled"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_session_keeps_everything_on_any_number_of_ranks(command):
    answer = verified(command, "with_session", options=("--world", "1,2,3"))
    for size in (2, 3):
        assert set(states(answer, size).values()) == {"kept"}
    assert answer["findings"] == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("path", "arguments"),
    [(EXAMPLES / "digits.py", ("--epochs", "2")), (PROGRAMS / "trainer_fit.py", ())],
    ids=["digits", "trainer"],
)
def test_the_library_s_own_programs_are_not_accused(command, path, arguments):
    ended = verify(command, "--json", path, *arguments)
    assert ended.status == 0, ended.out + ended.err
    assert json.loads(ended.out)["findings"] == []


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
