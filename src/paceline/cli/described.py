"""Find what ``paceline explain NAME`` describes: a finding, or a variable of NCCL or torch."""

from __future__ import annotations

from typing import Any


def described(name: str) -> Any:
    """Return the page of a finding, or the description of a variable; None if it is neither."""
    from paceline.diagnose import catalogue

    page = catalogue.find(name)
    if page is not None:
        return page
    from paceline.diagnose import variables  # only now: a code is answered without the tables

    return variables.describe(name)
