"""Quote words for bash, ``#SBATCH`` lines and addresses, so that they keep their meaning. Pure."""

from __future__ import annotations

import re
import shlex

# With surrogates, which represent bytes of the command line that are not text.
CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")
_ODD = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
# Characters that a terminal interprets or hides: control and bidirectional characters, raw bytes.
_UNSHOWN = re.compile(
    r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_PLAIN = re.compile(r"[\w@%+=:,./^-]+")


def word(text: str) -> str:
    """Quote a text as one word of bash.

    Control characters are escaped: sbatch refuses scripts with some of them, and a line feed would
    hide where the command continues.
    """
    if not _ODD.search(text):
        return shlex.quote(text)
    spelled = (_spell(byte) for byte in text.encode("utf-8", "surrogateescape"))
    return "$'" + b"".join(spelled).decode("utf-8", "replace") + "'"


def _spell(byte: int) -> bytes:
    if byte in b"\\'":
        return b"\\" + bytes([byte])
    named = {0x0A: b"\\n", 0x09: b"\\t", 0x0D: b"\\r"}
    if byte in named:
        return named[byte]
    return bytes([byte]) if 0x20 <= byte < 0x7F else f"\\{byte:03o}".encode()


def printable(text: str) -> str:
    """Return untrusted text as one line that a terminal displays without interpreting it."""
    return _UNSHOWN.sub(
        lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), text
    )


def printable_lines(text: str) -> str:
    """Return untrusted text whose lines a terminal displays without interpreting them."""
    return "\n".join(map(printable, text.split("\n")))


def directive(name: str, value: str | None = None) -> str:
    """Return the ``#SBATCH`` line of an option.

    No shell reads it. In sbatch's own syntax double quotes group words, a backslash inside them
    escapes any character, and ``#`` starts a comment.
    """
    if value is None:
        return f"#SBATCH --{name}"
    if _PLAIN.fullmatch(value):
        return f"#SBATCH --{name}={value}"
    return f'#SBATCH --{name}="' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def bracketed(host: str) -> str:
    """Return a host as written before a colon and a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def pattern(path: str) -> str:
    """Return a path that Slurm does not expand as a pattern with ``%j``."""
    return path.replace("%", "%%")


def comment(text: str) -> list[str]:
    """Return a text as comment lines; it cannot end the comment or become a directive."""
    lines = [CONTROL.sub(" ", line).strip() for line in text.splitlines()]
    return [f"# {line}" for line in lines if line]
