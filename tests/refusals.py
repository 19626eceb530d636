"""The finding with which a call is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paceline.errors import Finding


def refusal(kind: type | tuple[type, ...], call: Callable, /, *arguments, **keywords) -> Finding:
    """Return the finding of the exception of this kind that a call must raise."""
    with pytest.raises(kind) as caught:
        call(*arguments, **keywords)
    return caught.value.finding
