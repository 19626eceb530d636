"""JSON Schema of what a command prints with ``--json``, made from the types in ``json_types``."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from paceline.cli import json_types
from paceline.errors import Finding

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SIMPLE: Mapping[Any, dict[str, Any]] = {
    str: {"type": "string"},
    Path: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": ["number", "null"]},  # null for NaN and infinity, which JSON does not have
    type(None): {"type": "null"},
}
_PRINTED_AS = {Finding: json_types.FindingData}  # adds the code
# The description of a field: the comment at its end, or its line in the docstring.
_DESCRIBED = re.compile(
    r"^ +(?P<name>\w+): (?:[^#\n]+# (?=\S)|(?=[A-Z`]))(?P<text>.+)$", re.MULTILINE
)


def schema(
    command: str,  # words of the command without ``paceline``, such as ``checkpoint list``
) -> dict[str, Any]:
    """Return the JSON Schema of what a command prints with ``--json``."""
    objects: dict[str, Any] = {}
    printed = _schema_of(json_types.COMMANDS[command], objects)
    head = {"$schema": _DIALECT, "title": f"paceline {command} --json"}
    return {**head, **printed, "$defs": dict(sorted(objects.items()))}


def _schema_of(hint: Any, objects: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type; those of objects are added to ``objects``, by name."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return {}
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema_of(argument, objects) for argument in arguments]}
    if origin in (Mapping, dict):
        return {"type": "object", "additionalProperties": _schema_of(arguments[1], objects)}
    if origin in (list, tuple, Sequence):
        return {"type": "array", "items": _items(arguments, objects)}
    return _reference(_PRINTED_AS.get(hint, hint), objects)


def _items(arguments: Sequence[Any], objects: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the elements of a list or tuple."""
    element_types = [argument for argument in arguments if argument is not Ellipsis]
    return _schema_of(Union[tuple(element_types)], objects)  # noqa: UP007  (they are values)


def _reference(class_: Any, objects: dict[str, Any]) -> dict[str, Any]:
    """Return a reference to the schema of a class whose fields are printed as an object."""
    if class_.__name__ not in objects:
        objects[class_.__name__] = {}  # a class may contain itself
        objects[class_.__name__] = _object(class_, objects)
    return {"$ref": f"#/$defs/{class_.__name__}"}


def _object(class_: Any, objects: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(class_)
    for ancestor in class_.__mro__:
        hints.pop(json_types.LEFT_OUT.get(ancestor, ""), None)
    descriptions = dict(_descriptions(class_))
    properties = {}
    for name, hint in hints.items():
        description = {"description": descriptions[name]} if name in descriptions else {}
        properties[name] = {**_schema_of(hint, objects), **description}
    return {
        "type": "object",
        "description": (inspect.getdoc(class_) or "").split("\n\n")[0],
        "properties": properties,
        "required": sorted(getattr(class_, "__required_keys__", hints)),
        "additionalProperties": False,
    }


def _descriptions(class_: type) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class and its bases that are described, with the descriptions."""
    for base in getattr(class_, "__orig_bases__", class_.__bases__):
        if getattr(base, "__annotations__", None):
            yield from _descriptions(base)
    try:
        source = inspect.getsource(class_)
    except (OSError, TypeError):  # it was not written as a class
        return
    for described in _DESCRIBED.finditer(source):
        yield described["name"], described["text"]
