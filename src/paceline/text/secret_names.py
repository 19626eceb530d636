"""The words in names of variables, options and keys whose values are secret."""

from __future__ import annotations

# A part of a regular expression, for matching without regard to case.
WORDS = (
    r"psk|token|secret|passw(?:or)?d|passphrase|(?-i:_PASS\b)|credential"
    r"|(?:api|access|private|wandb|comet|neptune|encryption|signing|license|account|storage).?key"
)
