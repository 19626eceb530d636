"""Finds the page that a word asks for, and reads that one file only."""

from __future__ import annotations

import re
from pathlib import Path

from paceline.codes import CODES
from paceline.diagnose.catalogue.page import Page, parse

TEXTS = Path(__file__).with_name("texts")


def find(word: str) -> Page | None:
    """Return the page that a word asks for, None if it is no code and no name.

    Args:
        word: A code or a name as it was copied from somewhere: ``net001``, ``[NET001 port-in-use]``.
    """
    names = {code.lower(): name for name, code in CODES.items()} | {name: name for name in CODES}
    found = {names.get(part.strip("-")) for part in re.findall(r"[\w-]+", word.lower().replace("_", "-"))}
    (name,) = found if len(found) == 1 else (None,)
    return page(name) if name else None


def page(name: str) -> Page:
    """Return the page of a finding.

    Raises:
        KeyError: No finding has this name.
    """
    if name not in CODES:
        raise KeyError(name)
    return parse((TEXTS / f"{name}.md").read_text(encoding="utf-8"), name)
