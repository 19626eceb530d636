"""Unpickle the parts of a checkpoint as plain data, without running code that a file names.

Tensors are read as bytes. Everything else in a checkpoint is pickled, and a pickle may name any
function to call. So only classes of plain data are allowed, as by ``torch.load`` with
``weights_only=True``: those that torch allows, containers and numbers of Python, arrays of NumPy,
and what the script has allowed with ``torch.serialization.add_safe_globals``.
"""

from __future__ import annotations

import builtins
import collections
import datetime
import decimal
import fractions
import pathlib
import pickle
import re
import sys
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, cast

import torch
from torch._weights_only_unpickler import _get_allowed_globals
from torch.distributed.checkpoint import metadata as index_classes
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.serialization import safe_globals

from paceline.errors import UsageError
from paceline.rundir.files import open_file

INDEX = ".metadata"  # DCP's index of the other files
_BUILTIN = "bool bytearray bytes complex dict float frozenset int list range set slice str tuple"
_OF_PYTHON = [
    *(getattr(builtins, name) for name in _BUILTIN.split()),
    collections.defaultdict,
    collections.deque,
    decimal.Decimal,
    fractions.Fraction,
    datetime.date,
    datetime.datetime,
    datetime.timedelta,
    datetime.timezone,
    pathlib.PosixPath,
    pathlib.WindowsPath,
    pathlib.PurePosixPath,
    pathlib.PureWindowsPath,
]
_CANNOT_FILL = "but got <class"  # in torch's message about a container of another type
_OWN: list[Callable[..., Any]] = []  # paceline's classes of plain data


def allow(kind: Any) -> Any:
    """Allow a class of paceline in checkpoints; a decorator."""
    _OWN.append(kind)
    return kind


def load(file: BinaryIO, *, trust: bool, where: str, map_location: Any = None) -> Any:
    """Return the object in a file of ``torch.save``.

    ``trust`` unpickles any class, which may run code that the file names; ``where`` is for the
    message. Raises UsageError if the file needs other classes, and is not to be trusted,
    UnpicklingError if it is not a file of ``torch.save``.
    """
    try:
        with safe_globals(_allowed()):
            return torch.load(file, weights_only=True, map_location=map_location)
    except pickle.UnpicklingError as error:
        file.seek(0)
        if trust:
            return torch.load(file, weights_only=False, map_location=map_location)
        if names := _names_in(file) or _named_in(str(error)):
            raise needs_classes(where, names) from error
        if _CANNOT_FILL not in str(error):
            raise  # it is not a file of torch.save
    file.seek(0)
    return torch.load(
        file, weights_only=False, pickle_module=_containers(where), map_location=map_location
    )


def _containers(where: str) -> ModuleType:
    """Return a stand-in for the module ``pickle``, which finds the allowed classes only.

    torch's own unpickler fills lists and dicts, and no subclass of them such as a defaultdict.
    """
    classes = [*_allowed(), *torch.serialization.get_safe_globals()]
    pairs = [entry if isinstance(entry, tuple) else (entry, _name_of(entry)) for entry in classes]
    table = {**_get_allowed_globals(), **{name: entry for entry, name in pairs}}

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            # torch.save writes Python 2's names, such as __builtin__.long for int.
            module, name = NAME_MAPPING.get((module, name), (module, name))
            full = f"{IMPORT_MAPPING.get(module, module)}.{name}"
            if full not in table:
                raise needs_classes(where, [full])
            return table[full]

    stand_in: Any = ModuleType("containers")
    stand_in.Unpickler = Unpickler
    stand_in.load = lambda file, **options: Unpickler(file, **options).load()
    return cast(ModuleType, stand_in)


def _name_of(entry: Any) -> str:
    return str(entry) if isinstance(entry, torch.dtype) else f"{entry.__module__}.{entry.__name__}"


def _allowed() -> list[Any]:
    """Return the classes of plain data beside those of torch."""
    return [*_OF_PYTHON, *_OWN, *_of_numpy()]


def _names_in(file: BinaryIO) -> list[str]:
    """Return the full names of the classes in a file that are not allowed."""
    with safe_globals(_allowed()):
        try:
            return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(file))
        except (ValueError, RuntimeError):  # not the zip format of torch.save
            return []


def _named_in(message: str) -> list[str]:
    """Return the class in torch's message that is not allowed, for a file of an old format."""
    named = re.search(r"GLOBAL ([\w.]+) was not an allowed", message)
    return [named[1]] if named else []


def _of_numpy() -> list[Any]:
    """Return NumPy's classes and functions in the pickle of an array; none if it is not loaded."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return []
    array, scalar = numpy.arange(2), numpy.float64(1.0)
    rebuild, rebuild_scalar = array.__reduce__()[0], scalar.__reduce__()[0]
    # NumPy 1 and 2 keep these functions in different modules; a file may be of either.
    old = [
        (rebuild, "numpy.core.multiarray._reconstruct"),
        (rebuild, "numpy._core.multiarray._reconstruct"),
        (rebuild_scalar, "numpy.core.multiarray.scalar"),
        (rebuild_scalar, "numpy._core.multiarray.scalar"),
    ]
    types = {type(numpy.dtype(code)) for code in "?bBhHiIlLqQefdgFDG"}
    return [numpy.ndarray, numpy.dtype, *types, *old]


def needs_classes(where: str, names: list[str]) -> UsageError:
    """Return the error for a file with objects of classes that are not allowed."""
    return UsageError.of(
        "checkpoint-needs-classes",
        f"the file holds objects that are not plain data: {', '.join(names)}",
        where=where,
        why="unpickling them runs code that the file names; nothing was loaded",
        fix=(
            "trust=True, for a file that you trust; or before, for your own classes:"
            " torch.serialization.add_safe_globals([YourClass])"
        ),
    )


class IndexReader(FileSystemReader):
    """Reads the files of a checkpoint, whose index may hold DCP's own classes only."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._folder = path

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the index; raise UsageError if it holds objects of other classes."""
        with open_file(self._folder / INDEX) as file:
            metadata: Metadata = _IndexUnpickler(file, str(self._folder)).load()
        storage = getattr(metadata, "storage_meta", None) or StorageMeta()
        storage.load_id = self.load_id
        metadata.storage_meta = storage
        return metadata


class _IndexUnpickler(pickle.Unpickler):
    """Finds the classes that describe tensors and files, and no other."""

    def __init__(self, file: Any, where: str) -> None:
        super().__init__(file)
        self._where = where

    def find_class(self, module: str, name: str) -> Any:
        if not _is_of_index(module, name):
            raise needs_classes(self._where, [f"{module}.{name}"])
        return super().find_class(module, name)


def _is_class_of_index(name: str) -> bool:
    """Return whether DCP's module of metadata defines a class; ``Outer.INNER`` is of an enum."""
    value: Any = index_classes
    for part in name.split("."):
        value = getattr(value, part, None)
    kind = value if isinstance(value, type) else type(value)
    return kind.__module__ == index_classes.__name__


def _is_of_index(module: str, name: str) -> bool:
    if module == index_classes.__name__:
        return _is_class_of_index(name)
    return (module, name) in {
        ("pathlib", "Path"),
        ("pathlib", "PosixPath"),
        ("pathlib", "PurePosixPath"),
        ("pathlib", "WindowsPath"),
        ("collections", "OrderedDict"),
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    } or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype))
