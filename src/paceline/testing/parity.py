"""Compare what a function returns on one rank with what it returns on several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.errors import Finding, UsageError
from paceline.testing.pool import Ranks

# For float32: sums of other shares differ by some units in the last place, and steps let them grow.
DEFAULT_RTOL, DEFAULT_ATOL = 1e-5, 1e-6
_PLAIN = (str, bytes, bool, type(None))


class SameAtAnySize:
    """What the fixture ``same_at_any_size`` gives."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def __call__(
        self,
        function: Callable[..., Any],
        *args: Any,
        sizes: Sequence[int] = (1, 2, 3),
        rtol: float = DEFAULT_RTOL,
        atol: float = DEFAULT_ATOL,
        group: bool = True,
        timeout_s: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Check that a function returns the same numbers on any number of ranks.

        Args:
            function: Returns numbers, tensors, or lists, tuples and dictionaries of them.
            *args: Its arguments.
            sizes: Numbers of ranks; every rank of every size is compared with rank 0 of the first.
            rtol: Relative tolerance. The defaults are for float32; give ``rtol=0, atol=1e-10``
                where the function computes in float64.
            atol: Absolute tolerance.
            group: Whether the default process group is there when the function begins.
            timeout_s: How long each size may take, in seconds; None for the ini option's value.
            **kwargs: Its keyword arguments.

        Returns:
            What the function returned on rank 0 of the first size.

        Raises:
            AssertionError: A rank returned other numbers, with the place and the difference.
            RanksFailed: A rank failed, ended, or was not done in time.
            UsageError: There is nothing to compare.
        """
        __tracebackhide__ = True
        if len(sizes) < 2:
            raise UsageError(_too_few(sizes))
        options: dict[str, Any] = {"group": group, "timeout_s": timeout_s, **kwargs}
        first, *others = sizes
        expected = self._ranks.run(function, *args, world_size=first, **options)[0]
        if expected is None:
            raise UsageError(_nothing(function))
        for size in others:
            results = self._ranks.run(function, *args, world_size=size, **options)
            for rank, result in enumerate(results):
                label = f"rank {rank} of {size} differs from rank 0 of {first} in result"
                require_close(result, expected, label=label, rtol=rtol, atol=atol)
        return expected


def require_close(result: Any, expected: Any, *, label: str, rtol: float, atol: float) -> None:
    """Check that two results are equal within a tolerance; what is not a number must be equal.

    Results are numbers, tensors, or lists, tuples and dictionaries of them. Raises AssertionError
    with ``label`` if they differ.
    """
    __tracebackhide__ = True
    if _shape(result) != _shape(expected):
        raise AssertionError(f"{label}: {_shape(result)} is not {_shape(expected)}")
    parts = _parts(expected)
    for key in parts:
        place = f"{label}[{key!r}]"
        require_close(result[key], expected[key], label=place, rtol=rtol, atol=atol)
    if parts or isinstance(expected, Mapping | list | tuple):
        return
    if isinstance(expected, _PLAIN):
        if result != expected:
            raise AssertionError(f"{label}: {result!r} is not {expected!r}")
        return
    _require_close_numbers(result, expected, label, rtol=rtol, atol=atol)


def _require_close_numbers(
    result: Any, expected: Any, label: str, *, rtol: float, atol: float
) -> None:
    __tracebackhide__ = True
    from torch.testing import assert_close

    assert_close(result, expected, rtol=rtol, atol=atol, msg=lambda text: f"{label}: {text}")


def _parts(value: Any) -> list[Any]:
    """Return the keys of what a value holds; empty for a value without parts."""
    if isinstance(value, Mapping):
        return list(value)
    return list(range(len(value))) if isinstance(value, list | tuple) else []


def _shape(value: Any) -> str:
    """Return what two values must have in common before their parts are compared, in words."""
    if isinstance(value, Mapping):
        return f"a dictionary with the keys {sorted(map(repr, value))}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of length {len(value)}"
    return "a value"


def _too_few(sizes: Sequence[int]) -> Finding:
    return Finding(
        "option-invalid",
        f"sizes={tuple(sizes)!r} has nothing to compare",
        where="same_at_any_size",
        fix="sizes=(1, 2, 3)",
    )


def _nothing(function: Callable[..., Any]) -> Finding:
    name = getattr(function, "__name__", "the function")
    return Finding(
        "option-invalid",
        f"{name} returns None, so that nothing can be compared",
        where="same_at_any_size",
        fix="return the numbers that must agree, such as a list of losses",
    )
