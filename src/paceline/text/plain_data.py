"""Rebuild frozen dataclasses from plain data, the inverse of ``dataclasses.asdict``. Pure."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

_Kind = TypeVar("_Kind")


def read_as(kind: type[_Kind], values: Any) -> _Kind:
    """Convert ``values`` to ``kind``, a dataclass of dataclasses, lists, mappings and plain values.

    ``values`` is the output of ``asdict``, possibly after a round trip through JSON. Absent fields
    get their default. Unknown fields are ignored: another version may have written them. Raises
    ValueError if a value does not have the type of its field.
    """
    instance = _read_dataclass(kind, values, kind.__name__)
    assert isinstance(instance, kind)
    return instance


def _read(kind: Any, value: Any, where: str) -> Any:
    if is_dataclass(kind):
        return _read_dataclass(kind, value, where)
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _read_optional(kind, value, where)
    if origin in (tuple, list, Sequence):
        return _read_list(kind, origin, value, where)
    if origin in (dict, Mapping):
        return _read_dict(kind, value, where)
    return value if kind is Any else _read_plain(kind, value, where)


def _read_optional(kind: Any, value: Any, where: str) -> Any:
    if value is None:
        return None
    content = next(option for option in typing.get_args(kind) if option is not type(None))
    return _read(content, value, where)


def _read_list(kind: Any, origin: Any, values: Any, where: str) -> Sequence[Any]:
    _require(isinstance(values, list | tuple), where, "a list", values)
    content = typing.get_args(kind)[0]
    read = [_read(content, value, f"{where}[{place}]") for place, value in enumerate(values)]
    return tuple(read) if origin is tuple else read


def _read_dict(kind: Any, values: Any, where: str) -> dict[str, Any]:
    _require(isinstance(values, dict), where, "an object", values)
    content = typing.get_args(kind)[1]
    return {str(name): _read(content, value, f"{where}.{name}") for name, value in values.items()}


def _read_plain(kind: Any, value: Any, where: str) -> Any:
    """Return a value of a type without parts; True and False are not numbers here."""
    is_number = kind is float
    fits = isinstance(value, int | float if is_number else kind)
    if kind is not bool:
        fits = fits and not isinstance(value, bool)
    _require(fits, where, "a number" if is_number else kind.__name__, value)
    return float(value) if is_number else value


def _read_dataclass(kind: Any, values: Any, where: str) -> Any:
    _require(isinstance(values, dict), where, "an object", values)
    kinds = typing.get_type_hints(kind)
    names = [field.name for field in fields(kind) if field.name in values]
    arguments = {name: _read(kinds[name], values[name], f"{where}.{name}") for name in names}
    try:
        return kind(**arguments)
    except TypeError as error:  # a field without a default is absent
        raise ValueError(f"{where}: {error}") from None


def _require(condition: bool, where: str, what: str, value: Any) -> None:
    if not condition:
        raise ValueError(f"{where} must be {what}, not {value!r:.60}")
