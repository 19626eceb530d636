"""Identify which of some faults a line names."""

from __future__ import annotations

from functools import cache

from paceline.signatures.libraries import signatures
from paceline.signatures.signature import Signature


def name_of(text: str, names: tuple[str, ...]) -> str:
    """Return the fault that a line names; empty if it names none of ``names``."""
    lower = text.lower()
    matching = [signature for signature in _of(names) if signature.match(text, lower) is not None]
    likeliest = max(matching, key=lambda signature: signature.tier, default=None)
    return likeliest.name if likeliest is not None else ""


@cache
def _of(names: tuple[str, ...]) -> tuple[Signature, ...]:
    return tuple(signature for signature in signatures() if signature.name in names)
