"""Recognize secrets by the name before them or by their own shape, and hide them. Pure.

What is written into a run folder to be shown or compared has ``HIDDEN`` for them. Files that need
them, such as job scripts, have mode 0600 instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from paceline.codes import CODES

# A part of a regular expression, for matching without regard to case.
WORDS = (
    r"psk|token|secret|passw(?:or)?d|passphrase|(?-i:_PASS\b)|credential"
    r"|(?:api|access|private|wandb|comet|neptune|encryption|signing|license|account|storage).?key"
)


HIDDEN = "..."  # stands for a secret

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
_NUMBER = re.compile(r"\d*\.?\d+(?:e-?\d+)?", re.I)
_LABEL = re.compile(r"<secret-\d+>")
# A reference to a value instead of the value.
_REFERENCE = re.compile(r"\$\{?[A-Za-z_]\w*\}?|os\.(?:environ|getenv)\b.*")
_FILE = re.compile(r"(?:file|path|dir|folder)$")
_PUNCTUATION = re.compile(r"[\[({<>)}\],;:.=|]*")


def hidden(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command line with its secrets hidden."""
    return tuple(
        hidden_value(option, word) if _has_value(option) else hidden_in(word)
        for option, word in zip(("", *words), words, strict=False)
    )


def _has_value(option: str) -> bool:
    return option.startswith("-") and "=" not in option


def hidden_value(name: str, value: str) -> str:
    """Return the value of an option or a parameter, hidden if it is secret."""
    if NAME.search(name) and not value.startswith("-") and is_secret(name, value):
        return HIDDEN
    return hidden_in(value)


def hidden_values(values: Mapping[str, str]) -> dict[str, str]:
    """Return parameters by name with the values of secret ones hidden."""
    return {name: hidden_value(name, value) for name, value in values.items()}


def hidden_in(text: str) -> str:
    """Return a text, such as a command to paste, with its secrets hidden."""
    return relabelled(text, lambda _: HIDDEN)


def relabelled(text: str, label: Callable[[str], str]) -> str:
    """Return a text with a label for each secret that has a known shape or a name."""

    def of_shape(match: re.Match[str]) -> str:
        if match[1] == HIDDEN or _LABEL.match(match[1]):
            return match[0]
        start, end = match.start(1) - match.start(), match.end(1) - match.start()
        return match[0][:start] + label(match[1]) + match[0][end:]

    def of_name(match: re.Match[str]) -> str:
        name, between, quote = match["name"], match["between"], match["quote"] or ""
        value = match["quoted"] if quote else match["plain"]
        rest = "" if quote else _closing(value)
        value = value[: len(value) - len(rest)]
        is_assigned = re.search(r"[:=]", between) is not None
        if not (is_assigned or name.startswith("--")) or not is_secret(name, value):
            return match[0]
        return f"{name}{between}{quote}{label(value)}{quote}{rest}"

    for pattern in SHAPES:
        text = pattern.sub(of_shape, text)
    text = NAMED_ITEM.sub(of_name, text)
    lines = text.split("\n")
    return "\n".join(NAMED.sub(of_name, line) if NAME.search(line) else line for line in lines)


def _closing(value: str) -> str:
    """Return the brackets and commas behind a value: ``Namespace(token=abc, lr=1)``."""
    match = re.search(r"[,;)\]}]+$", value)
    return match[0] if match else ""


def is_secret(name: str, value: str) -> bool:
    """Return whether a value is secret by its name, as in ``HF_TOKEN=...``."""
    if _NO_VALUE.fullmatch(value) or _PUNCTUATION.fullmatch(value):
        return False
    lower = name.lower()
    if _REFERENCE.fullmatch(value) or _FILE.search(lower) or lower in CODES:
        return False
    words = {word.lower() for word in NAME.findall(lower)}
    if words == {"token"} and (_NO_TOKEN.search(lower) or _NUMBER.fullmatch(value)):
        return False
    return not (words == {"pwd"} and value.startswith(("/", "<", "~")))
