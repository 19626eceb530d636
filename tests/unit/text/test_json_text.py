"""Plain data as JSON that any parser reads."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest

from paceline.cli import command_help
from paceline.text.json_text import json_text


def refuse(name):
    raise ValueError(name)


def parsed(text):
    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("wrap", "null"),
    [
        (lambda number: number, None),
        (lambda number: [1.5, (number,)], [1.5, [None]]),
        (lambda number: {"a": {"loss": number}, 3: "x"}, {"a": {"loss": None}, "3": "x"}),
    ],
    ids=["alone", "in lists", "in objects"],
)
def test_a_number_that_is_not_finite_is_null(number, wrap, null):
    assert parsed(json_text(wrap(number))) == null


def test_finite_data_are_printed_as_python_does():
    values = {"loss": 0.25, "name": "ä", "steps": [1, 2], "none": None, "yes": True}
    assert json_text(values) == json.dumps(values, indent=1)
    assert json_text(values, indent=None) == json.dumps(values)


@dataclass
class Inner:
    path: Path
    loss: float


@dataclass
class Outer:
    hidden: int
    inner: Inner

    def to_json(self):
        return {"inner": [self.inner]}


def test_a_dataclass_is_an_object(capsys):
    command_help.show(Outer(1, Inner(Path("a"), math.nan)), True)
    assert parsed(capsys.readouterr().out) == {"inner": [{"path": "a", "loss": None}]}
