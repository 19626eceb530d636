"""Replace secrets, people and addresses in texts by labels, the same label for the same value.

What is known (this user, this host, secret values in the environment) is replaced wherever it
stands. What is not known is recognized by its form.
"""

from __future__ import annotations

import ipaddress
import itertools
import json
import os
import pwd
import re
import socket
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from paceline import env
from paceline.diagnose.variables.setting import SECRET as SECRET_NAME
from paceline.text.secret_texts import is_secret, relabelled

# Forms of what must not be shown, besides secrets with a name or a known shape

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
_USER_VARIABLES = ("USER", "LOGNAME", "SUDO_USER", "SLURM_JOB_USER")
_LEAST_FULL_NAME = 5
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


SECRET, USER, HOST, ADDRESS, EMAIL = "secret", "user", "host", "address", "email"
_SHORTEST_SECRET = 6  # of the environment: shorter ones are found by their names only
_SHORTEST_NAME = 3
_MOST_LEARNED = 200  # each of them is looked for in all texts

_HOMES = re.compile(r"/(?:home|Users|export/home|nfs/home|cluster/home|u|users)/([\w.-]+)")
_USERS = re.compile(
    r"\b(?:USER|LOGNAME|USERNAME|SLURM_JOB_USER|user_?name)[\"']?\s*[=:]\s*[\"']?([\w.-]+)"
)
_HOSTS = (
    re.compile(r"\"host(?:name)?\": \"([\w.-]+)\""),
    re.compile(r"^(?:.*\]:?)?\s*host\s*: ([\w.-]+)", re.M),  # the summary of torchrun
    re.compile(r"--(?:master[-_]addr|rdzv[-_]endpoint)[\"',=\s]+([\w.-]+)"),
    re.compile(r"(?:MASTER_ADDR|RDZV_ENDPOINT|NODENAME|HOSTNAME)[\"']?\s*[=:]\s*[\"']?([\w.-]+)"),
)
_NODE_LIST = re.compile(r"(NODELIST\W{1,4})([\w.-]+\[[\w,-]+\][\w.,\[\]-]*)")
# Words of these texts, which name a user or host on some machines.
_WORDS = frozenset(
    {
        "admin",
        "cpu",
        "cuda",
        "data",
        "default",
        "gpu",
        "head",
        "home",
        "host",
        "job",
        "lib",
        "linux",
        "localhost",
        "login",
        "logs",
        "main",
        "master",
        "model",
        "nccl",
        "node",
        "none",
        "null",
        "project",
        "python",
        "rank",
        "root",
        "run",
        "script",
        "server",
        "shared",
        "slurm",
        "test",
        "torch",
        "train",
        "ubuntu",
        "unknown",
        "user",
        "users",
        "worker",
    }
)
_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[A-Za-z][\w-]*(?:\.[\w-]+)*")
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\d)(?!-?[a-z])")
_IPV6 = re.compile(r"(?<![\w:.])[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(?![\w:])", re.I)
_HARDWARE = re.compile(r"(?<![\w:])[0-9a-f]{2}(?::[0-9a-f]{2}){5,}(?![\w:])", re.I)
# The four numbers of a version: nvidia-cublas-cu12 12.4.5.8.
_VERSION = re.compile(r"(?:[=<>~]=|version[ :=\"']*|\bv|-cu\d+\W{1,4}|\w-)$", re.I)


@dataclass(frozen=True)
class Known:
    """What is known about the machine and the user, and must not be shown."""

    secrets: tuple[str, ...] = ()  # secret values of the environment
    users: tuple[str, ...] = ()  # names of this user
    homes: tuple[str, ...] = ()  # home folders of this user
    hosts: tuple[str, ...] = ()  # names of this host


class Redactor:
    """Replaces what texts must not show."""

    def __init__(self, known: Known) -> None:
        self.counts: Counter[str] = Counter()  # number of replacements by kind
        self._labels: dict[str, dict[str, str]] = {}
        long_enough = [value for value in known.secrets if len(value) >= _SHORTEST_SECRET]
        self._secrets = {spelling for value in long_enough for spelling in _spellings(value)}
        self._users = {spelling for name in known.users for spelling in (name, _in_json(name))}
        homes = {home.rstrip("/") for home in known.homes} - {""}
        self._homes = homes | set(map(_in_json, homes))
        self._hosts = set(known.hosts)

    def learn(self, texts: Iterable[str]) -> None:
        """Note the secrets, users and hosts that texts name, so that all texts are redacted alike.

        A password that is recognized by its name in one text is a plain word in another one.
        """
        for text in texts:
            self._without_secrets(TERMINAL_CODE.sub("", text))
            self._users.update(_HOMES.findall(text), _USERS.findall(text))
            for pattern in _HOSTS:
                self._hosts.update(_without_port(host) for host in pattern.findall(text))
        telling = filter(_is_telling, self._labels.get(SECRET, ()))
        self._secrets.update(itertools.islice(telling, _MOST_LEARNED))
        self.counts.clear()

    def redact(self, text: str) -> str:
        """Return a text with labels for secrets, users, hosts and addresses."""
        text = TERMINAL_CODE.sub("", text)
        text = self._without_secrets(text)
        for home in sorted(self._homes, key=len, reverse=True):
            text = re.sub(rf"{re.escape(home)}(?![\w.-])", "<home>", text)
        text = _HOMES.sub(self._home_of, text)
        text = _EMAIL.sub(lambda match: self._label(EMAIL, match[0]), text)
        text = self._without_names(text, USER, self._users)
        text = _NODE_LIST.sub(lambda match: match[1] + self._label(HOST, match[2]), text)
        text = self._without_names(text, HOST, self._hosts)
        return self._without_addresses(text)

    def _without_secrets(self, text: str) -> str:
        text = PRIVATE_KEY.sub(lambda match: self._label(SECRET, match[0]), text)
        for value in sorted(self._secrets, key=len, reverse=True):
            if value in text:
                text = text.replace(value, self._label(SECRET, value, text.count(value)))
        text = relabelled(text, lambda value: self._label(SECRET, value))
        text = KEY_LINE.sub(lambda match: self._label(SECRET, match[0]), text)
        for word in sorted(set(random_strings(text)), key=len, reverse=True):
            text = text.replace(word, self._label(SECRET, word, text.count(word)))
        return text

    def _home_of(self, match: re.Match[str]) -> str:
        start = match[0][: len(match[0]) - len(match[1])]
        return start + self._label(USER, match[1])

    def _without_names(self, text: str, kind: str, names: Iterable[str]) -> str:
        usable = [name for name in names if _is_name(name)]
        if not usable:
            return text
        longest_first = sorted(usable, key=len, reverse=True)
        pattern = rf"(?<![\w<-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w-]|\.py\b)"
        return re.sub(pattern, lambda match: self._label(kind, match[0]), text)

    def _without_addresses(self, text: str) -> str:
        text = _HARDWARE.sub(lambda match: self._label(ADDRESS, match[0]), text)
        text = _IPV4.sub(self._address, text)
        return _IPV6.sub(self._address, text)

    def _address(self, match: re.Match[str]) -> str:
        before = match.string[max(0, match.start() - 24) : match.start()]
        if _VERSION.search(before) or not _is_address(match[0]):
            return match[0]
        return self._label(ADDRESS, match[0])

    def _label(self, kind: str, value: str, times: int = 1) -> str:
        """Return the label of a value; the first of a kind has the number 1."""
        self.counts[kind] += times
        labels = self._labels.setdefault(kind, {})
        return labels.setdefault(value, f"<{kind}-{len(labels) + 1}>")


def _spellings(secret: str) -> tuple[str, ...]:
    """Return a value as it stands in plain text, in JSON and in an address."""
    return secret, _in_json(secret), quote(secret, safe="")


def _in_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _is_telling(secret: str) -> bool:
    """Return whether a secret can be looked for alone: it is not a word such as ``required``."""
    return len(secret) >= _SHORTEST_SECRET and not secret.isalpha()


def _without_port(host: str) -> str:
    return host.partition(":")[0].rstrip(".")


def _is_name(name: str) -> bool:
    """Return whether a name is one wherever it stands, not a word of these texts or a number."""
    is_word = name.lower() in _WORDS or len(name) < _SHORTEST_NAME
    return not is_word and not re.fullmatch(r"[\d.:]+", name)


def _is_address(text: str) -> bool:
    """Return whether a text is the address of a machine, not of every machine (loopback, masks)."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if address.is_loopback or address.is_unspecified or text.startswith("255."):
        return False
    groups = [group for group in re.split(r"[:.]", text) if group]
    return len(groups) > 1  # c10:: is a namespace of C++


def known() -> Known:
    """Return the names of this user and host, and the secret values of the environment."""
    variables = env.snapshot()
    secrets = [
        value
        for name, value in variables.items()
        if SECRET_NAME.search(name) and is_secret(name, value)
    ]
    users = [variables.get(name, "") for name in _USER_VARIABLES]
    homes = [variables.get("HOME", "")]
    try:
        account = pwd.getpwuid(os.getuid())
    except KeyError:  # in a container, whose users the machine does not know
        account = None
    if account is not None:
        full_name = account.pw_gecos.partition(",")[0]
        users += [account.pw_name, full_name if len(full_name) >= _LEAST_FULL_NAME else ""]
        homes.append(account.pw_dir)
    homes += [os.path.realpath(home) for home in homes if home]
    host = socket.gethostname()
    hosts = (host, host.partition(".")[0])
    return Known(
        tuple(filter(None, secrets)),
        tuple(filter(None, users)),
        tuple(home for home in homes if len(Path(home).parts) > 1),
        tuple(filter(None, hosts)),
    )
