"""Recognize secrets: by the name before them, by their own shape, or because they are random."""

from __future__ import annotations

import itertools
import re

from paceline.codes import CODES
from paceline.text.secret_names import WORDS

# Colours of a terminal: the letter at their end would stand directly before a token.
TERMINAL_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")

# A private key, also without its end, and with the label of a rank on each line.
PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
# A line of such a key, in a text that begins in the middle of it.
KEY_LINE = re.compile(r"(?<![\w/+])[A-Za-z0-9+/]{64}(?![\w/+])")

# Each has the secret as its group.
SHAPES = (
    re.compile(r"://([^\s/@:\"']*:[^\s/@\"']+)@"),
    re.compile(r"://([^\s/@:\"']{8,})@"),
    re.compile(
        r"[?&](?:[\w.-]{0,40}(?:sig|signature|token|key|secret|password))=([^\s&\"'#]+)", re.I
    ),
    re.compile(r"\b(?:Bearer|Basic)\s+([A-Za-z0-9._~+/=-]{6,})"),
    re.compile(r"\bauthorization\\*[\"']?\s*[:=]\s*\\*[\"']?(?:\w+\s+)?([^\s\"'\\,]+)", re.I),
    re.compile(r"\b(?:set-)?cookie\\*[\"']?\s*:\s*\\*[\"']?([^\"'\\\n]+)", re.I),
    re.compile(r"\bmachine\s+\S+\s+login\s+\S+\s+password\s+(\S+)"),
    re.compile(r"\bwandb\s+login\s+(?:--\S+\s+)*(\w{20,})"),
    re.compile(r"(?<![A-Za-z0-9])((?:hf|api_org)_[A-Za-z0-9]{16,})"),
    re.compile(r"(?<![A-Za-z0-9])(gh[oprsu]_[A-Za-z0-9]{16,}|github_pat_\w{16,})"),
    re.compile(r"(?<![A-Za-z0-9])(gl[a-z]{1,6}-[\w-]{16,})"),
    re.compile(r"(?<![A-Za-z0-9])([sp]k-[A-Za-z0-9_-]{16,}|[srp]k_(?:live|test)_\w{10,})"),
    re.compile(r"(?<![A-Za-z0-9])(xox[a-z]-[\w-]{8,}|xapp-[\w-]{8,})"),
    re.compile(r"hooks\.slack\.com/services/([\w/]+)"),
    re.compile(r"(?<![A-Za-z0-9])((?:AKIA|ASIA|AROA|AIDA)[0-9A-Z]{16})(?![A-Za-z0-9])"),
    re.compile(r"(?<![A-Za-z0-9])(AIza[\w-]{35}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,})"),
    re.compile(r"(?<![A-Za-z0-9])(nvapi-[\w-]{16,}|npm_[A-Za-z0-9]{20,}|pypi-[\w-]{20,})"),
    re.compile(r"(?<![A-Za-z0-9])(dckr_pat_[\w-]{16,}|wandb_v\d_\w{16,}|r8_[A-Za-z0-9]{20,})"),
    re.compile(r"(?<![\w.-])(eyJ[\w-]{5,}\.[\w-]{5,}(?:\.[\w-]*)?)"),
)

# NAME=value, NAME: value, "NAME": "value", --name value.
NAMED = re.compile(
    rf"(?P<name>(?<![\w.-])[\w.-]{{0,60}}?(?:{WORDS}|pwd)[\w.-]{{0,40}})"
    r"(?P<between>\\*[\"']?\]?\s*(?:=>|:=|[:=])\s*|\\*[\"']?,?\s+)"
    r"(?:(?P<quote>\\*[\"'])(?P<quoted>.*?)(?P=quote)|(?P<plain>[^\s\"'\\]+))",
    re.I,
)
# Two words of a list, which JSON may have on two lines.
NAMED_ITEM = re.compile(
    rf"(?P<name>--[\w.-]{{0,60}}?(?:{WORDS})[\w.-]{{0,40}})"
    r"(?P<between>\\*[\"'],\s+)(?P<quote>\\*[\"'])(?P<quoted>.*?)(?P=quote)(?P<plain>)",
    re.I,
)
# Most lines have none of them, and NAMED is slow.
NAME = re.compile(rf"{WORDS}|pwd", re.I)
# In names that only contain "token": one is a secret, several are a number of words.
_NO_TOKEN = re.compile(
    r"tokens|tokeni[sz]|token_?(?:id|type|index|len|count|num|per|drop|idx|emb|mask|dim|class)"
    r"|(?:pad|eos|bos|unk|mask|sep|cls|next|last|first|stop|image|special|per|new|each|max|min|num)"
    r"[_-]?token",
    re.I,
)
_NO_VALUE = re.compile(
    r"none|null|nil|true|false|yes|no|\d?|\.\.\.|\*+|<[a-z]+-\d+>[,;.)\]}]*", re.I
)
# A reference to a value instead of the value.
_REFERENCE = re.compile(r"\$\{?[A-Za-z_]\w*\}?|os\.(?:environ|getenv)\b.*")
_FILE = re.compile(r"(?:file|path|dir|folder)$")
_PUNCTUATION = re.compile(r"[\[({<>)}\],;:.=|]*")

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


def is_secret(name: str, value: str) -> bool:
    """Return whether a value is secret by its name, as in ``HF_TOKEN=...``."""
    if _NO_VALUE.fullmatch(value) or _PUNCTUATION.fullmatch(value):
        return False
    lower = name.lower()
    if _REFERENCE.fullmatch(value) or _FILE.search(lower) or lower in CODES:
        return False
    words = {word.lower() for word in NAME.findall(lower)}
    if words == {"token"} and (_NO_TOKEN.search(lower) or value.isdecimal()):
        return False
    return not (words == {"pwd"} and value.startswith(("/", "<", "~")))


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
