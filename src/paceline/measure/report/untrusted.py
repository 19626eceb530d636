"""Take numbers from the content of files that anybody may have written. Pure."""

from __future__ import annotations

import math
from typing import Any

# What content of another form raises where its fields are taken.
OTHER_CONTENT = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    ZeroDivisionError,
    OverflowError,
    RecursionError,
)


def finite(value: Any) -> float:
    """Return a number.

    Raises:
        ValueError: It is infinite or NaN, which JSON has no words for and Python's reader accepts.
        TypeError: It is not a number.
    """
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is not a finite number")
    return number


def positive(value: Any) -> float:
    """Return a number above 0.

    Raises:
        ValueError: It is 0, negative, infinite or NaN.
        TypeError: It is not a number.
    """
    number = finite(value)
    if number <= 0:
        raise ValueError(f"{number} is not above 0")
    return number
