"""The words in names of variables, options and keys whose values are secret."""

from __future__ import annotations

# A part of a regular expression, for matching without regard to case.
WORDS = r"psk|token|secret|passw(?:or)?d|passphrase|credential|(?:api|access|private).?key"
