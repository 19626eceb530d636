"""Choose from the arguments of ``@pytest.mark.ranks`` on how many ranks a test runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import UsageError, closest

MOST_RANKS = 64  # their sockets fit into one message: the kernel's SCM_MAX_FD is 253
DEFAULT_TIMEOUT_S = 60.0
DEFAULT_COLLECTIVE_TIMEOUT_S = 30.0
_EXAMPLE = "@pytest.mark.ranks(1, 2, 3)"
_OPTIONS = ("group", "fresh", "timeout_s", "collective_timeout_s")


@dataclass(frozen=True)
class RanksMark:
    """The mark of a test."""

    sizes: tuple[int, ...]  # numbers of ranks, each of them a case of the test
    group: bool = True  # whether the default process group is there when the test begins
    fresh: bool = False  # whether the ranks are new processes that serve no other test
    # how long the ranks may take, in seconds; None for the ini option's value
    timeout_s: float | None = None
    # timeout of the default group's collectives, in seconds
    collective_timeout_s: float = DEFAULT_COLLECTIVE_TIMEOUT_S


def parse(args: Sequence[Any], kwargs: Mapping[str, Any], *, where: str = "") -> RanksMark:
    """Return what a mark of a test, named in findings, asks for.

    Raises UsageError if a size or an option is invalid.
    """
    sizes = tuple(args)
    if not sizes:
        raise _error("the mark ranks has no number of ranks", where, fix=_EXAMPLE)
    for size in sizes:
        if not _is_number(size, int) or not 1 <= size <= MOST_RANKS:
            what = f"{size!r} is not a number of ranks: 1 to {MOST_RANKS}"
            raise _error(what, where, fix=_EXAMPLE)
    if len(set(sizes)) < len(sizes):
        raise _error(f"the mark names a number of ranks twice: {sizes}", where, fix=_EXAMPLE)
    for name, value in kwargs.items():
        _require_valid(name, value, where)
    return RanksMark(sizes, **kwargs)


def _require_valid(name: str, value: Any, where: str) -> None:
    if name not in _OPTIONS:
        near = closest(name, _OPTIONS)
        listed = ", ".join(_OPTIONS)
        fix = f"{near}={value!r}" if near else f"its options are {listed}"
        raise _error(f"the mark ranks has no option {name}", where, fix=fix, name="option-unknown")
    if name in ("group", "fresh"):
        if not isinstance(value, bool):
            raise _error(f"{name} is True or False, not {value!r}", where, fix=f"{name}=True")
    elif not _is_number(value, (int, float)) or not value > 0:
        what = f"{name} is a number of seconds, not {value!r}"
        raise _error(what, where, fix=f"{name}={DEFAULT_TIMEOUT_S:g}")


def _is_number(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _error(what: str, where: str, *, fix: str, name: str = "option-invalid") -> UsageError:
    return UsageError.of(name, what, where=where, fix=fix)
