"""The colours of a report on a light and on a dark page. Pure.

Runs and parts of a step have the colours of Okabe and Ito (Color Universal Design, 2008), which
remain different for people who confuse red and green; the dark palette has lighter shades of them.
An ink is a shade with a contrast to the page of at least 4.5, so that a name can be written in it.
"""

from __future__ import annotations

from collections.abc import Mapping

# role: fill and ink on a light page, fill and ink on a dark page
_ROLES: Mapping[str, tuple[str, str, str, str]] = {
    "run-0": ("#0072b2", "#0067a1", "#4ba9e8", "#6fbdf2"),
    "run-1": ("#d55e00", "#b04d00", "#ff8a3d", "#ff9d5c"),
    "run-2": ("#009e73", "#00755a", "#2ecc9a", "#4fd8ad"),
    "run-3": ("#cc79a7", "#a1487a", "#e59bc6", "#ecafd2"),
    "run-4": ("#e69f00", "#8a5f00", "#f2b43c", "#f5c362"),
    "run-5": ("#56b4e9", "#1f709f", "#8cd0ff", "#a5daff"),
    "run-6": ("#7a5195", "#7a5195", "#b79ced", "#c6b1f2"),
    "run-7": ("#7f7f7f", "#666666", "#a6adb8", "#b8bec8"),
    "data": ("#e69f00", "#8a5f00", "#e69f00", "#f2b43c"),
    "forward": ("#56b4e9", "#1f709f", "#56b4e9", "#8cd0ff"),
    "backward": ("#0072b2", "#0067a1", "#2285c7", "#6fbdf2"),
    "optimizer": ("#009e73", "#00755a", "#17ab80", "#4fd8ad"),
    "other-code": ("#9aa3af", "#5f6873", "#8a94a2", "#b8bec8"),
    "communication": ("#cc79a7", "#a1487a", "#cc79a7", "#ecafd2"),
    "waiting": ("#d55e00", "#b04d00", "#e2702a", "#ff9d5c"),
    "ideal": ("#9aa3af", "#5f6873", "#8a94a2", "#b8bec8"),
    "forecast": ("#7a5195", "#7a5195", "#b79ced", "#c6b1f2"),
}
_PAGES: Mapping[str, Mapping[str, str]] = {
    "light": {"page": "#ffffff", "text": "#1b2028", "text-soft": "#5b6472", "grid": "#e4e7eb"},
    "dark": {"page": "#12161c", "text": "#e8ecf1", "text-soft": "#a3adba", "grid": "#2a313b"},
}
_BAND_OPACITY = "33"  # two hexadecimal digits: 20 %


def palettes() -> dict[str, dict[str, str]]:
    """Return the colour of each role, by theme. A role ends with ``-ink`` or ``-band``, or not."""
    return {theme: _palette(theme, place) for theme, place in (("light", 0), ("dark", 2))}


def _palette(theme: str, place: int) -> dict[str, str]:
    colours = dict(_PAGES[theme])
    for role, shades in _ROLES.items():
        colours[role] = shades[place]
        colours[f"{role}-ink"] = shades[place + 1]
        colours[f"{role}-band"] = shades[place] + _BAND_OPACITY
    return colours
