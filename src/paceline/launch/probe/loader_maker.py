"""Find the line of a script in which a DataLoader's settings are written.

Lightning, Fabric and Accelerate construct a second loader from the script's, with a sampler that
divides the data. The settings are those of the first one, so that is the line to change.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from paceline.machine.compiled import uncounted

_LIBRARIES = {"transformers.trainer": "transformers", "paceline.train": "paceline"}


@dataclass(frozen=True)
class Maker:
    """Who has constructed a loader."""

    # ``transformers`` or ``paceline`` if the script leaves it to them, else empty
    library: str = ""
    place: str = ""  # file and line of the script; empty if none is known


@dataclass
class Makers:
    """Remembers who has constructed the first loader of each dataset."""

    is_users: Callable[[str], bool]  # returns whether a file is the user's
    _first: dict[int, tuple[weakref.ref[Any], Maker]] = field(default_factory=dict)

    def watch(self) -> None:
        """Note the maker of every DataLoader that is constructed from now on."""
        from torch.utils.data import DataLoader

        kind: Any = DataLoader
        construct = kind.__init__

        @functools.wraps(construct)
        def noted_construct(loader: Any, *args: Any, **kwargs: Any) -> None:
            construct(loader, *args, **kwargs)
            loader.__dict__["_paceline_maker"] = self.find(sys._getframe(1), loader.dataset)

        kind.__init__ = uncounted(noted_construct)

    def line_of(self, frame: FrameType | None) -> str:
        """Return the nearest line of the script, as ``train.py:24``; empty if none is known."""
        return self._of_frame(frame).place

    def find(self, frame: FrameType, dataset: Any) -> Maker:
        """Return the maker of a loader, whose constructor the frame has called."""
        first = self._of_dataset(dataset)
        if first is not None and not self.is_users(frame.f_code.co_filename):
            return first
        maker = self._of_frame(frame)
        with contextlib.suppress(TypeError):  # a list cannot be referred to
            self._first[id(dataset)] = weakref.ref(dataset), maker
        return maker

    def _of_dataset(self, dataset: Any) -> Maker | None:
        reference, maker = self._first.get(id(dataset), (None, None))
        is_same = reference is not None and reference() is dataset
        return maker if is_same else None

    def _of_frame(self, frame: FrameType | None) -> Maker:
        """Return the library among the callers, and the nearest line of the script."""
        library = ""
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            library = library or _LIBRARIES.get(".".join(module.split(".")[:2]), "")
            if self.is_users(frame.f_code.co_filename):
                path = os.path.relpath(frame.f_code.co_filename)
                return Maker(library, f"{path}:{frame.f_lineno}")
            frame = frame.f_back
        return Maker(library)
