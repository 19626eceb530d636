"""Rebuild frozen dataclasses from plain data, the inverse of ``dataclasses.asdict``. Pure."""

from __future__ import annotations

import types
import typing
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

_Kind = TypeVar("_Kind")


def read_as(kind: type[_Kind], values: Any) -> _Kind:
    """Convert ``values`` to ``kind``, a dataclass of dataclasses, tuples and plain values.

    Args:
        kind: The dataclass.
        values: The output of ``asdict``, possibly after a round trip through JSON. Absent fields
            get their default. Unknown fields are ignored: another version may have written them.

    Raises:
        ValueError: A value does not have the type of its field.
    """
    found = _read(kind, values, kind.__name__)
    assert isinstance(found, kind)
    return found


def _read(kind: Any, value: Any, where: str) -> Any:
    if is_dataclass(kind) and isinstance(kind, type):
        return _read_dataclass(kind, value, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        rest = [each for each in arguments if each is not type(None)]
        return None if value is None else _read(rest[0], value, where)
    if origin is tuple:
        _require(isinstance(value, list | tuple), where, "a list", value)
        return tuple(
            _read(arguments[0], each, f"{where}[{place}]") for place, each in enumerate(value)
        )
    if origin is dict:
        _require(isinstance(value, dict), where, "an object", value)
        return {
            str(name): _read(arguments[1], each, f"{where}.{name}") for name, each in value.items()
        }
    if kind is float:
        _require(
            isinstance(value, int | float) and not isinstance(value, bool), where, "a number", value
        )
        return float(value)
    _require(
        isinstance(value, kind) and (kind is bool or not isinstance(value, bool)),
        where,
        kind.__name__,
        value,
    )
    return value


def _read_dataclass(kind: Any, value: Any, where: str) -> Any:
    _require(isinstance(value, dict), where, "an object", value)
    kinds = typing.get_type_hints(kind)
    known = {
        each.name: _read(kinds[each.name], value[each.name], f"{where}.{each.name}")
        for each in fields(kind)
        if each.name in value
    }
    try:
        return kind(**known)
    except TypeError as error:  # a field without a default is absent
        raise ValueError(f"{where}: {error}") from None


def _require(true: bool, where: str, what: str, value: Any) -> None:
    if not true:
        raise ValueError(f"{where} must be {what}, not {value!r:.60}")
