"""Parse the file of ``paceline submit --sweep``: a grid, a list, or random draws. Pure."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import UsageError, closest
from paceline.rundir.sweeps import MOST_ELEMENTS
from paceline.slurm import toml_reader
from paceline.slurm.sweep import definition
from paceline.text.quoting import CONTROL

GRID, LIST, RANDOM = "grid", "list", "random"
_KEYS: Mapping[str, tuple[str, ...]] = {
    GRID: ("method", "parallel", "parameters"),
    LIST: ("method", "parallel", "elements"),
    RANDOM: ("method", "parallel", "parameters", "count", "seed"),
}
_RANGE_KEYS = ("min", "max", "scale")
_SCALES = ("linear", "log")
_DIGITS = 6  # of a number that is drawn; more say nothing about a hyperparameter


@dataclass(frozen=True)
class SweepFile:
    """The content of a sweep file."""

    points: tuple[Mapping[str, str], ...]  # values of each element, in the order of their indices
    parallel: int = 0  # how many elements run at a time, 0 without a limit


def read(text: str, *, path: str) -> SweepFile:
    """Parse a sweep file.

    Raises UsageError if the file is not TOML, or a key is unknown, or a value has the wrong type.
    """
    return _DefinitionReader(text, path).read()


class _DefinitionReader:
    """Parses one file; errors name the line."""

    def __init__(self, text: str, path: str) -> None:
        self._text, self._path = text, path

    def read(self) -> SweepFile:
        whole = toml_reader.parse(
            self._text, path=self._path, name="sweep-invalid", kind="sweep file"
        )
        method = whole.get("method", LIST if "elements" in whole else GRID)
        if method not in _KEYS:
            near = closest(str(method), _KEYS) or GRID
            rule = f"method is one of {', '.join(_KEYS)}"
            raise self._invalid("", "method", rule, f'method = "{near}"')
        self._require_known("", whole, _KEYS[method], method=method)
        points = self._points(method, whole)
        if not points:
            raise self._invalid("", "", "the sweep has no elements", "[parameters]\nlr = [0.1, 1]")
        return SweepFile(tuple(points), self._count("parallel", whole.get("parallel", 0), least=0))

    def _points(self, method: str, whole: Mapping[str, Any]) -> list[dict[str, str]]:
        if method == LIST:
            return self._listed(whole.get("elements"))
        table = whole.get("parameters")
        if not isinstance(table, dict) or not table:
            rule, fix = "the sweep has no parameters", "[parameters], and a line: lr = [0.1, 0.01]"
            raise self._invalid("", "parameters", rule, fix)
        for name in table:
            self._require_name("parameters", name)
        return self._grid(table) if method == GRID else self._drawn(table, whole)

    def _listed(self, elements: Any) -> list[dict[str, str]]:
        if not isinstance(elements, list) or not all(isinstance(row, dict) for row in elements):
            rule, fix = "a list has sections [[elements]]", "[[elements]], and a line: lr = 0.1"
            raise self._invalid("", "elements", rule, fix)
        names = list(dict.fromkeys(name for row in elements for name in row))
        for number, row in enumerate(elements):
            missing = [name for name in names if name not in row]
            if missing:
                rule = f"element {number} has no {missing[0]}, and others have it"
                raise self._invalid("elements", "", rule, f"{missing[0]} = ...")
        for name in names:
            self._require_name("elements", name)
        return [
            {name: self._text_of("elements", name, row[name]) for name in names} for row in elements
        ]

    def _grid(self, table: Mapping[str, Any]) -> list[dict[str, str]]:
        axes = {name: self._choices(name, value) for name, value in table.items()}
        size = math.prod(map(len, axes.values()))
        if size > MOST_ELEMENTS:
            rule = f"the grid has {size:,} elements, and a sweep at most {MOST_ELEMENTS:,}"
            raise self._invalid("parameters", "", rule, 'method = "random", and count = 100')
        return definition.combinations(axes)

    def _choices(self, name: str, value: Any) -> list[str]:
        if isinstance(value, dict):
            rule = f"{name} is a range, which only random draws have"
            raise self._invalid("parameters", name, rule, 'method = "random", and count = 20')
        if not isinstance(value, list):
            value = [value]
        if not value:
            raise self._invalid("parameters", name, f"{name} has no values", f"{name} = [1, 2]")
        return [self._text_of("parameters", name, item) for item in value]

    def _drawn(self, table: Mapping[str, Any], whole: Mapping[str, Any]) -> list[dict[str, str]]:
        if "count" not in whole:
            raise self._invalid("", "method", "random draws have a count", "count = 20")
        count, seed = self._count("count", whole["count"]), whole.get("seed", 0)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise self._invalid("", "seed", "seed is a whole number", "seed = 0")
        # a stream for each parameter: another one in the file leaves its values as they are
        columns = {
            name: self._column(name, value, random.Random(f"{seed}/{name}"), count)
            for name, value in table.items()
        }
        return [{name: texts[place] for name, texts in columns.items()} for place in range(count)]

    def _column(self, name: str, value: Any, stream: random.Random, count: int) -> list[str]:
        if isinstance(value, dict):
            draw = self._range(name, value)
            return [draw(stream) for _ in range(count)]
        choices = self._choices(name, value)
        return [stream.choice(choices) for _ in range(count)]

    def _range(self, name: str, table: Mapping[str, Any]) -> Callable[[random.Random], str]:
        self._require_known("parameters", table, _RANGE_KEYS, key_of=name)
        low, high = (self._bound(name, key, table) for key in ("min", "max"))
        scale = table.get("scale", "linear")
        if scale not in _SCALES:
            near = closest(str(scale), _SCALES) or "log"
            rule = f"scale of {name} is one of {', '.join(_SCALES)}"
            raise self._invalid("parameters", name, rule, f'scale = "{near}"')
        if not low < high:
            raise self._invalid("parameters", name, f"min of {name} is below max", "")
        if scale == "log" and low <= 0:
            rule = f"min of {name} is above 0: its scale is log"
            raise self._invalid("parameters", name, rule, "min = 1e-4")
        is_whole = isinstance(low, int) and isinstance(high, int)
        return _draw(low, high, is_log=scale == "log", is_whole=is_whole)

    def _bound(self, name: str, key: str, table: Mapping[str, Any]) -> float:
        value = table.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            rule = f"{name} is a range and has no number {key}"
            raise self._invalid("parameters", name, rule, f"{name} = {{ min = 0.1, max = 1.0 }}")
        if not math.isfinite(value):
            raise self._invalid("parameters", name, f"{key} of {name} is finite", "")
        return value

    def _text_of(self, section: str, name: str, value: Any) -> str:
        """Return a value as the argument that the script gets."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (int, float)):
            return str(value)
        if not isinstance(value, str) or CONTROL.search(value):
            rule = f"a value of {name} is a text in one line, a number, true or false"
            raise self._invalid(section, name, rule, f"{name} = [0.1, 0.01]")
        return value

    def _count(self, key: str, value: Any, *, least: int = 1) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._invalid("", key, f"{key} is a whole number from 1", f"{key} = 8")
        if value > MOST_ELEMENTS:
            rule = f"{key} is at most {MOST_ELEMENTS:,}"
            raise self._invalid("", key, rule, f"{key} = {MOST_ELEMENTS}")
        return value

    def _require_name(self, section: str, name: str) -> None:
        if name == definition.INDEX or not definition.is_name(name):
            reason = ": it is the element's own number" if name == definition.INDEX else ""
            rule = f"{name!r} cannot be the name of a parameter{reason}"
            raise self._invalid(section, name, rule, "letters, digits, and . _ - inside")

    def _require_known(
        self,
        section: str,
        table: Mapping[str, Any],
        keys: Sequence[str],
        *,
        method: str = "",
        key_of: str = "",
    ) -> None:
        for key in table:
            if key not in keys:
                raise self._unknown(section, key, table, keys, method=method, key_of=key_of)

    def _unknown(
        self,
        section: str,
        key: str,
        table: Mapping[str, Any],
        keys: Sequence[str],
        *,
        method: str,
        key_of: str,
    ) -> UsageError:
        near = closest(key, [name for name in keys if name not in table])
        elsewhere = [name for name, own in _KEYS.items() if key in own]
        subject = f"{key_of} has no key {key}" if key_of else f"a sweep file has no key {key}"
        if method and elsewhere:
            subject = f"{key} has no effect with method {method}"
            fix = f'method = "{elsewhere[-1]}", or leave it out'
        elif near:
            value = table[key]
            fix = f"[{near}]" if isinstance(value, dict) else f"{near} = {_toml(value)}"
        elif method:
            fix = f"[parameters], and below it: {key} = {_toml(table[key])}"
        else:
            fix = f"one of {', '.join(keys)}"
        return self._invalid(section, key_of or key, subject, fix)

    def _invalid(self, section: str, key: str, what: str, fix: str) -> UsageError:
        number = toml_reader.line_of(self._text, section, key)
        where = f"{self._path}:{number}" if number else self._path
        return UsageError.of("sweep-invalid", what, where=where, fix=fix)


def _draw(
    low: float, high: float, *, is_log: bool, is_whole: bool
) -> Callable[[random.Random], str]:
    """Return what draws a number from a range, as a text."""

    def uniform(stream: random.Random) -> float:
        if is_log:
            # rounding may leave the range by the last bit
            drawn = math.exp(stream.uniform(math.log(low), math.log(high)))
            return min(max(drawn, low), high)
        return stream.uniform(low, high)

    def whole(stream: random.Random) -> str:
        return str(round(uniform(stream)) if is_log else stream.randint(int(low), int(high)))

    return whole if is_whole else lambda stream: f"{uniform(stream):.{_DIGITS}g}"


def _toml(value: Any) -> str:
    """Return a value as TOML writes it, as far as messages need it."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return re.sub(r"^'|'$", '"', repr(value))
