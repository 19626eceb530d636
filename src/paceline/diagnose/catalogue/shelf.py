"""Look up the page of a finding by code or name, and read only that file."""

from __future__ import annotations

import re
from pathlib import Path

from paceline.codes import CODES
from paceline.diagnose.catalogue.page import Page, parse

TEXTS = Path(__file__).with_name("texts")


def find(word: str) -> Page | None:
    """Return the page of a code or name, as copied from a message; None if the word is neither."""
    names = {code.lower(): name for name, code in CODES.items()} | {name: name for name in CODES}
    matches = {
        names.get(part.strip("-")) for part in re.findall(r"[\w-]+", word.lower().replace("_", "-"))
    }
    (name,) = matches if len(matches) == 1 else (None,)
    return page(name) if name else None


def page(name: str) -> Page:
    """Return the page of a finding; raise KeyError if there is no finding with this name."""
    if name not in CODES:
        raise KeyError(name)
    return parse((TEXTS / f"{name}.md").read_text(encoding="utf-8"), name)
