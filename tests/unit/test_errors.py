"""Bad news has one shape: what a Finding holds, how it is printed, what the exceptions carry."""

import json

import pytest

from paceline.errors import (
    CODES,
    EXIT_FAILED,
    EXIT_MISUSE,
    Finding,
    PacelineError,
    RunError,
    SetupError,
    UsageError,
    closest,
)

FULL = Finding(
    "port-in-use",
    "port 29500 is held by pid 4242",
    where="node-a",
    evidence=("LISTEN 0.0.0.0:29500", "since Tuesday"),
    why="two stores cannot share it",
    fix="--master-port 29501",
)


def test_a_finding_is_rendered_in_the_order_in_which_it_is_read():
    assert FULL.render().splitlines() == [
        "error NET001 port-in-use: port 29500 is held by pid 4242",
        "  where: node-a",
        "  LISTEN 0.0.0.0:29500",
        "  since Tuesday",
        "  why: two stores cannot share it",
        "  fix: --master-port 29501",
        "  more: paceline explain NET001",
    ]


def test_empty_parts_take_no_line():
    assert Finding("port-in-use", "taken", severity="hint").render().splitlines() == [
        "hint NET001 port-in-use: taken",
        "  more: paceline explain NET001",
    ]


def test_a_finding_is_plain_data_as_json():
    content = json.loads(json.dumps(FULL.to_json()))
    assert content.pop("code") == "NET001" == FULL.code
    assert Finding(**{**content, "evidence": tuple(content["evidence"])}) == FULL


@pytest.mark.parametrize(
    ("name", "severity"),
    [("port-is-taken", "error"), ("NET001", "error"), ("port-in-use", "fatal")],
)
def test_an_unknown_name_or_severity_is_refused(name, severity):
    with pytest.raises(ValueError, match="unknown"):
        Finding(name, "text", severity=severity)


@pytest.mark.parametrize(
    ("kind", "status"),
    [(UsageError, EXIT_MISUSE), (SetupError, EXIT_MISUSE), (RunError, EXIT_FAILED)],
)
def test_exceptions_carry_the_finding_and_an_exit_status(kind, status):
    with pytest.raises(PacelineError) as caught:
        raise kind(FULL)
    assert caught.value.finding is FULL
    assert caught.value.exit_status == status
    assert str(caught.value) == FULL.render()


@pytest.mark.parametrize(
    ("word", "known", "expected"),
    [
        ("--nproc-per-nod", ["--nnodes", "--nproc-per-node"], "--nproc-per-node"),
        ("gup", ["gpu", "cpu"], "gpu"),
        ("zzz", ["gpu", "cpu"], ""),
        ("gpu", [], ""),
    ],
)
def test_the_closest_word(word, known, expected):
    assert closest(word, known) == expected


def test_names_that_other_programs_rely_on_keep_their_code():
    expected = {"option-unknown": "USE001", "port-in-use": "NET001", "user-exception": "RUN001"}
    assert {name: CODES[name] for name in expected} == expected
