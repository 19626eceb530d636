"""Parse the words of a shell script with their quoting, which decides which shell expands a
variable.

``$SLURM_NODEID`` has one value if the batch script expands it, and another inside single quotes,
where a shell on each node expands it. A word is therefore a list of parts, and nothing is expanded
here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_DEPTH = 60

_NAME = re.compile(r"[A-Za-z_]\w*")
_SPECIAL = "0123456789@*#?$!-"
_PLAIN = re.compile(r"[^\s\\'\"$`;&|<>()#]+")
_IN_DOUBLE = re.compile(r"[^\\\"$`]+")
_END_OF_WORD = frozenset(" \t\n;&|<>()")
_INDEXED = re.compile(r"(#|!)?([A-Za-z_]\w*|[0-9@*#?$!-])(\[[^\]]*\])?(.*)", re.DOTALL)
# A comment may follow and ends the command too; a backslash inside a word is a name with a blank.
_BLANK_AFTER_BACKSLASH = re.compile(r"\\[ \t]+\n|(?<=[ \t])\\[ \t]+#")

# Tokens in the search for a closing bracket; the lines of a heredoc are limited against repeated
# backtracking.
_TOKENS = re.compile(
    r"""\\. | '[^']*' | "(?:[^"\\$`]|\\.)*"
    | (?<!<)<<-?[ ]*(['"]?)(\w+)\1[^\n]*\n(?:[^\n]*\n){0,200}?\s*\2(?=\n)
    | (?<=\s)\#[^\n]* | [()"']""",
    re.DOTALL | re.VERBOSE,
)


class ShellError(Exception):
    """The script cannot be parsed as shell; the message contains the line."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"line {line}: {what}")
        self.line = line


@dataclass(frozen=True)
class WordPart:
    """A piece of a word."""

    # ``text``, ``var`` (``$NAME``), ``cmd`` (``$(...)``), ``arith`` (``$((...))``) or ``proc``
    # (``<(...)``)
    kind: str
    text: str  # the literal text, the name of the variable, or the source inside
    quoted: bool = False  # True inside quotes or behind a backslash: no splitting
    op: str = ""  # what follows the name in ``${NAME...}``
    # ``[@]``, ``[0]`` or the like of an array; ``#`` before the name is kept here too
    index: str = ""


@dataclass(frozen=True)
class Word:
    """One word of a command."""

    parts: tuple[WordPart, ...]  # its pieces in order
    line: int  # where it begins
    raw: str  # as it is written

    @property
    def is_verbatim(self) -> bool:
        """Whether a shell expands nothing in a here-document: <<'EOF', or no dollar in it."""
        return self.literal == self.raw

    @property
    def literal(self) -> str | None:
        """The text, None if a part is expanded."""
        if any(part.kind != "text" for part in self.parts):
            return None
        return "".join(part.text for part in self.parts)

    @property
    def bare(self) -> str:
        """The text if it has no quotes or expansions, so that it can be a keyword, else empty."""
        return self.raw if self.parts == (WordPart("text", self.raw),) else ""


class Cursor:
    """A position in a source."""

    def __init__(self, source: str, line: int = 1, depth: int = 0) -> None:
        self.source = source
        self.at = 0  # the next character
        self.depth = depth
        self.broken: list[int] = []  # lines that end in a backslash and blanks
        self._line = line
        self._counted = 0

    @property
    def line(self) -> int:
        """The line of the next character."""
        self._line += self.source.count("\n", self._counted, self.at)
        self._counted = max(self._counted, self.at)
        return self._line

    def peek(self, size: int = 1) -> str:
        """Return the next characters without moving."""
        return self.source[self.at : self.at + size]

    def fail(self, what: str) -> ShellError:
        """Return an error for this position."""
        return ShellError(self.line, what)

    def deeper(self) -> None:
        """Enter a nested construct."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.fail("nested too deeply")


def read_word(cursor: Cursor) -> Word:
    """Read the word at the cursor, which is at its first character."""
    line, start = cursor.line, cursor.at
    parts: list[WordPart] = []
    while cursor.at < len(cursor.source):
        char = cursor.peek()
        if char in "<>" and cursor.peek(2) in ("<(", ">(") and cursor.at == start:
            cursor.at += 1
            parts.append(WordPart("proc", _balanced(cursor)))
        elif char == "(" and cursor.at > start and cursor.source[cursor.at - 1] in "!@?*+":
            parts.append(WordPart("text", f"({_balanced(cursor)})"))  # a pattern of bash's extglob
        elif char in _END_OF_WORD:
            break
        else:
            _read_piece(cursor, parts)
    return Word(tuple(_joined(parts)), line, cursor.source[start : cursor.at])


def parse_word(text: str, *, line: int = 1, quoted: bool = False, depth: int = 0) -> Word:
    """Read a whole text as one word, blanks included, as inside ``${NAME:-text}`` or a heredoc."""
    cursor = Cursor(text, line, depth)
    cursor.deeper()
    parts: list[WordPart] = []
    while cursor.at < len(text):
        if quoted:
            _double(cursor, parts, until="")
            break
        if cursor.peek() in _END_OF_WORD or cursor.peek() == "#":
            parts.append(WordPart("text", cursor.peek()))
            cursor.at += 1
        else:
            _read_piece(cursor, parts)
    return Word(tuple(_joined(parts)), line, text)


def _joined(parts: list[WordPart]) -> list[WordPart]:
    joined: list[WordPart] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last and last.kind == part.kind == "text" and last.quoted == part.quoted:
            joined[-1] = WordPart("text", last.text + part.text, part.quoted)
        else:
            joined.append(part)
    return joined


def _read_piece(cursor: Cursor, parts: list[WordPart]) -> None:
    char = cursor.peek()
    if char == "\\":
        _escape(cursor, parts)
    elif char == "'":
        end = cursor.source.find("'", cursor.at + 1)
        if end < 0:
            raise cursor.fail("a single quote is not closed")
        parts.append(WordPart("text", cursor.source[cursor.at + 1 : end], True))
        cursor.at = end + 1
    elif char == '"':
        cursor.at += 1
        parts.append(WordPart("text", "", True))
        _double(cursor, parts, until='"')
        cursor.at += 1
    elif char == "$" and cursor.peek(2) == "$'":
        parts.append(WordPart("text", _ansi(cursor), True))
    elif char in "$`":
        parts.append(_dollar(cursor, quoted=False))
    else:
        plain = _PLAIN.match(cursor.source, cursor.at)
        text = plain[0] if plain else char
        parts.append(WordPart("text", text))
        cursor.at += len(text)


def _escape(cursor: Cursor, parts: list[WordPart]) -> None:
    following = cursor.source[cursor.at + 1 : cursor.at + 2]
    if _BLANK_AFTER_BACKSLASH.match(cursor.source, cursor.at):
        cursor.broken.append(cursor.line)
    if following != "\n":
        parts.append(WordPart("text", following, True))
    cursor.at += 2 if following else 1


def _double(cursor: Cursor, parts: list[WordPart], *, until: str) -> None:
    source = cursor.source
    while cursor.at < len(source):
        char = source[cursor.at]
        if char == until:
            return
        if char == "\\":
            following = source[cursor.at + 1 : cursor.at + 2]
            if following == "\n":
                pass
            elif following and following in '$`"\\':
                parts.append(WordPart("text", following, True))
            else:
                parts.append(WordPart("text", "\\" + following, True))
            cursor.at += 2
        elif char in "$`":
            parts.append(_dollar(cursor, quoted=True))
        else:
            plain = _IN_DOUBLE.match(source, cursor.at)
            text = plain[0] if plain else char
            parts.append(WordPart("text", text, True))
            cursor.at += len(text)
    if until:
        raise cursor.fail("a double quote is not closed")


def _ansi(cursor: Cursor) -> str:
    end = cursor.at + 2
    while end < len(cursor.source) and cursor.source[end] != "'":
        end += 2 if cursor.source[end] == "\\" else 1
    text = cursor.source[cursor.at + 2 : end]
    cursor.at = min(end + 1, len(cursor.source))
    return text.replace("\\n", "\n").replace("\\t", "\t").replace("\\'", "'")


def _dollar(cursor: Cursor, *, quoted: bool) -> WordPart:
    source, at = cursor.source, cursor.at
    if source[at] == "`":
        return _backticks(cursor, quoted=quoted)
    if source.startswith("$((", at):
        expression = _arithmetic(cursor)
        if expression is not None:
            return WordPart("arith", expression, quoted)
    if source.startswith("$(", at):
        cursor.at += 1
        return WordPart("cmd", _balanced(cursor), quoted)
    if source.startswith("${", at):
        return _braces(cursor, quoted=quoted)
    name = _NAME.match(source, at + 1)
    if name:
        cursor.at = name.end()
        return WordPart("var", name[0], quoted)
    if source[at + 1 : at + 2] and source[at + 1] in _SPECIAL:
        cursor.at += 2
        return WordPart("var", source[at + 1], quoted)
    cursor.at += 1
    return WordPart("text", "$", quoted)


def _backticks(cursor: Cursor, *, quoted: bool) -> WordPart:
    end = cursor.at + 1
    while end < len(cursor.source) and cursor.source[end] != "`":
        end += 2 if cursor.source[end] == "\\" else 1
    if end >= len(cursor.source):
        raise cursor.fail("a backtick is not closed")
    inner = re.sub(r"\\([`$\\])", r"\1", cursor.source[cursor.at + 1 : end])
    cursor.at = end + 1
    return WordPart("cmd", inner, quoted)


def _arithmetic(cursor: Cursor) -> str | None:
    depth = 0
    for match in re.compile(r"[()]").finditer(cursor.source, cursor.at + 1):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            inner = cursor.source[cursor.at + 3 : match.start() - 1]
            if cursor.source[match.start() - 1] != ")":
                return None  # $( (subshell) ), not arithmetic
            cursor.at = match.end()
            return inner
    raise cursor.fail("$(( is not closed")


def _braces(cursor: Cursor, *, quoted: bool) -> WordPart:
    cursor.deeper()
    start = at = cursor.at + 2
    source, depth = cursor.source, 1
    while at < len(source):
        char = source[at]
        if char == "\\":
            at += 1
        elif char == "{" and source[at - 1] == "$":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                break
        at += 1
    if depth:
        raise cursor.fail("${ is not closed")
    cursor.at, inner = at + 1, source[start:at]
    cursor.depth -= 1
    match = _INDEXED.fullmatch(inner)
    if not match:
        return WordPart("var", "?", quoted, op=inner)
    sign, name, index, op = match.groups()
    return WordPart("var", name, quoted, op or "", (sign or "") + (index or ""))


def _balanced(cursor: Cursor) -> str:
    """Move past ``( ... )`` and return its content, with quotes, comments and inner brackets."""
    source, depth, start = cursor.source, 0, cursor.at + 1
    at = cursor.at
    while True:
        match = _TOKENS.search(source, at)
        if match is None:
            raise cursor.fail("( is not closed")
        at = match.end()
        if match[0] == "(":
            depth += 1
        elif match[0] == ")":
            depth -= 1
            if depth == 0:
                cursor.at = at
                return source[start : at - 1]
        elif match[0] == '"':
            at = _after_double(cursor, at)
        elif match[0] == "'":
            raise cursor.fail("a single quote is not closed")


def _after_double(cursor: Cursor, at: int) -> int:
    """Return the end of a double quote with expansions, which may contain quotes and brackets."""
    inner = Cursor(cursor.source, cursor.line, cursor.depth)
    inner.deeper()
    inner.at = at
    _double(inner, [], until='"')
    return inner.at + 1
