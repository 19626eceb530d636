"""Recognize what a bundle must not have besides secrets with a name or a known shape."""

from __future__ import annotations

import itertools
import re

# Colours of a terminal: the letter at their end would stand directly before a token.
TERMINAL_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")

# A private key, also without its end, and with the label of a rank on each line.
PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
# A line of such a key, in a text that begins in the middle of it.
KEY_LINE = re.compile(r"(?<![\w/+])[A-Za-z0-9+/]{64}(?![\w/+])")

_RANDOM = re.compile(r"(?<![\w+/.=-])[A-Za-z0-9+=_-]{32,}(?![\w+/-])")
_HEX = re.compile(r"(?<![\w-])(?:[0-9a-f]{32,}|[0-9A-F]{32,})(?![\w-])")
# What stands before a number that only looks like a key: commits, checksums.
_NO_KEY = re.compile(
    r"(?:commit|revision|rev|head|sha\d*|md5|crc\d*|digest|checksum|hash|git)\W{0,6}\w{0,12}\W{0,4}$",
    re.I,
)
_LEAST_OF_A_KIND = 3
# Neighbours of different kinds among the characters of a random string are 0.62 of them. Of the
# 5,846 words with 32 letters or more in torch 2.13's Python files only ids of documents reach it.
_LEAST_CHANGES = 0.4


def random_strings(text: str) -> list[str]:
    """Return the words of a text that nobody has written: keys without a known shape."""
    matches = [match for match in _RANDOM.finditer(text) if _is_random(match[0])]
    matches += [
        match for match in _HEX.finditer(text) if not _NO_KEY.search(text, 0, match.start())
    ]
    return [match[0] for match in matches]


def _is_random(word: str) -> bool:
    if word.startswith("_Z"):  # a symbol of C++
        return False
    kinds = "".join(_kind(char) for char in word)
    if any(kinds.count(kind) < _LEAST_OF_A_KIND for kind in "aA0"):
        return False
    changes = sum(first != second for first, second in itertools.pairwise(kinds))
    return changes / len(kinds) >= _LEAST_CHANGES


def _kind(char: str) -> str:
    if char.isdigit():
        return "0"
    if char.isalpha():
        return "A" if char.isupper() else "a"
    return "-"
