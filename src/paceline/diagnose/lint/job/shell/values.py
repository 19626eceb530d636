"""Expand shell words to values: text where it is known, symbols where it is only known when the job
runs.

A value is a plain string in which a character of a private range stands for each symbol. So a value
can be split, joined and parsed as a script again, and each symbol records its expansion: by the
batch script on the first node, or by a shell on each node.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paceline.diagnose.lint.job.shell.words import ShellError, Word, WordPart, parse_word

_FIRST = 0xF0000
_MOST_SYMBOLS = 60_000
MOST_TEXT = 20_000
_SYMBOL = re.compile("[\U000f0000-\U000ffffd]")
_NAME = re.compile(r"\$?\{?([A-Za-z_]\w*|[0-9@#?])\}?")
_DEFAULT = re.compile(r":?([-=+?])(.*)", re.DOTALL)
_LIST_OF_HOSTS = re.compile(r"scontrol\s+show\s+host(?:name)?s?\b")

BATCH, NODE = "batch", "node"


@dataclass(frozen=True)
class Symbol:
    """A value that is known only when the job runs."""

    text: str  # as it is written
    # the shell that expands it: ``batch`` (the batch script, on the first node) or ``node`` (of
    # each task)
    place: str
    name: str = ""  # the variable, or empty
    command: str = ""  # the source of a command substitution, or empty
    loose: bool = False  # True if it may be several words or none
    # True for a variable that the batch script sets without exporting it, so that no task sees it
    lost: bool = False


class Symbols:
    """The symbols of one script, each with its character."""

    def __init__(self) -> None:
        self._chars: dict[Symbol, str] = {}
        self._table: list[Symbol] = []

    def char(self, symbol: Symbol) -> str:
        """Return the character that stands for a symbol."""
        if symbol not in self._chars:
            # The private use area of Unicode is finite; a generated script may have more.
            if len(self._table) >= _MOST_SYMBOLS:
                return chr(_FIRST)
            self._chars[symbol] = chr(_FIRST + len(self._table))
            self._table.append(symbol)
        return self._chars[symbol]

    def of(self, text: str) -> list[Symbol]:
        """Return the symbols in a value, in order."""
        return [self._table[ord(char) - _FIRST] for char in _SYMBOL.findall(text)]

    def only(self, text: str) -> Symbol | None:
        """Return the symbol, if a value is one symbol and nothing else."""
        return self.of(text)[0] if len(text) == 1 and _SYMBOL.match(text) else None

    def show(self, text: str) -> str:
        """Return a value for findings: symbols as they are written."""
        return _SYMBOL.sub(lambda match: self._table[ord(match[0]) - _FIRST].text, text)


def constant(text: str) -> bool:
    """Return whether a value contains no symbol."""
    return not _SYMBOL.search(text)


def clean(source: str) -> str:
    """Return a source without the characters that stand for symbols."""
    return _SYMBOL.sub("\ufffd", source)


@dataclass(frozen=True)
class Arg:
    """One argument of a command."""

    text: str  # its value
    line: int  # its line
    loose: bool = False  # True if it may be several arguments or none


Value = str | list[str]


class Expander:
    """Expands words with the variables of a shell."""

    def __init__(
        self,
        symbols: Symbols,
        values: dict[str, Value],
        *,
        place: str = BATCH,
        presets: Mapping[str, str] | None = None,
        lost: frozenset[str] = frozenset(),
        arguments: list[str] | None = None,
    ) -> None:
        self.symbols = symbols
        self.values = values  # the variables that are set, changed by ${NAME:=...}
        self.place = place  # the shell that expands, as in `Symbol`
        self.presets = dict(presets or {})
        self.lost = lost
        self.arguments = arguments  # positional arguments, or None if they are unknown

    def fields(self, word: Word) -> list[Arg]:
        """Return the arguments to which a word expands."""
        texts: list[str] = []
        for part in word.parts:
            pieces = self._pieces(part)
            if texts and pieces:
                texts[-1] += pieces.pop(0)
            texts += pieces
        # "$x" is one argument whatever it holds; only "$@" and "${list[@]}" are several in quotes.
        may_be_several = all(
            not part.quoted or part.index in ("[@]", "[*]") or part.text in ("@", "")
            for part in word.parts
        )
        return [Arg(text, word.line, may_be_several and self._loose(text)) for text in texts]

    def _pieces(self, part: WordPart) -> list[str]:
        """Return the texts of a part: the first continues the last argument, others follow."""
        if part.kind == "text":
            return [part.text] if part.text or part.quoted else []
        elements = self._elements(part)
        if elements is not None:
            return elements
        text = self.part(part)
        return [text] if part.quoted else text.split()

    def text(self, word: Word) -> str:
        """Return the expansion of a word without splitting, as in an assignment."""
        pieces = (part.text if part.kind == "text" else self.part(part) for part in word.parts)
        return self._cut("".join(pieces))

    def _cut(self, text: str) -> str:
        # A loop that appends to a variable would double it until memory ends.
        return text if len(text) <= MOST_TEXT else self._unknown("...", loose=True)

    def _loose(self, text: str) -> bool:
        symbol = self.symbols.only(text)
        return symbol is not None and symbol.loose

    def _elements(self, part: WordPart) -> list[str] | None:
        """Return the elements of ``"$@"`` or ``"${array[@]}"``, None for a single value."""
        if part.kind != "var" or part.op or part.index.startswith(("#", "!")):
            return None
        if part.text in "@*" and part.text:
            return list(self.arguments) if self.arguments is not None else None
        if part.index in ("[@]", "[*]"):
            value = self.values.get(part.text)
            if isinstance(value, list):
                return list(value)
        return None

    def part(self, part: WordPart) -> str:
        """Return the value of an expansion."""
        if part.kind == "var":
            return self._cut(self._variable(part))
        if part.kind == "arith":
            return self.arithmetic(part.text)
        if part.kind == "cmd":
            return self._command(part.text.strip())
        return self._unknown("<(...)")

    def _unknown(self, text: str, *, loose: bool = False, command: str = "", name: str = "") -> str:
        return self.symbols.char(Symbol(text, self.place, name, command, loose, name in self.lost))

    def value(self, name: str) -> str:
        """Return the value of a variable, a symbol if the script does not set it."""
        value = self.values.get(name)
        if isinstance(value, list):
            return self._first(name, value)
        if value is None:
            value = self.presets.get(name, self._positional(name))
        if value is None:
            # Slurm's variables are single words; what a user sets outside may be a list of options.
            return self._unknown(f"${name}", loose=not name.startswith("SLURM"), name=name)
        return value

    def _first(self, name: str, elements: list[str]) -> str:
        """Return the first element of an array; an unknown array has one loose element."""
        # ${array[0]} of an unknown array is one value, though the array may have none or many.
        if elements and self._loose(elements[0]):
            return self._unknown(f"${{{name}[0]}}")
        return elements[0] if elements else ""

    def _positional(self, name: str) -> str | None:
        """Return ``$1``, ``$#`` or ``$@``; None if it is unknown, and for other names."""
        if self.arguments is None:
            return None
        if name.isdigit() and name != "0":
            place = int(name)
            return self.arguments[place - 1] if place <= len(self.arguments) else ""
        if name == "#":
            return str(len(self.arguments))
        return " ".join(self.arguments) if name in ("@", "*") else None

    def _variable(self, part: WordPart) -> str:
        name, raw = part.text, "${" + part.index.rstrip("@]*[") + part.text + part.op + "}"
        if part.index.startswith("#"):
            return self._length(name, part, raw)
        if part.index.startswith("!"):
            return self._unknown(raw, loose=True)
        if part.index and part.index not in ("[@]", "[*]"):
            return self._element(part)
        default = _DEFAULT.fullmatch(part.op) if part.op else None
        if default:
            return self._defaulted(name, default, part)
        value = self.value(name)
        if part.index and isinstance(self.values.get(name), list):
            value = " ".join(self.values[name])
        if not part.op:
            return value
        return self._changed(part, value)

    def _length(self, name: str, part: WordPart, raw: str) -> str:
        value = self.values.get(name)
        if isinstance(value, list) and all(constant(item) for item in value):
            return str(len(value))
        if isinstance(value, list):
            # hosts=($(scontrol show hostnames ...)): as many elements as the job has nodes
            commands = [symbol.command for item in value for symbol in self.symbols.of(item)]
            if len(value) == 1 and any(_LIST_OF_HOSTS.search(command) for command in commands):
                return self.value("SLURM_JOB_NUM_NODES")
        return self._unknown(raw.replace("{", "{#", 1))

    def _element(self, part: WordPart) -> str:
        value, index = self.values.get(part.text), self.arithmetic(part.index[1:-1])
        if isinstance(value, list) and index.isdigit() and not any(map(self._loose, value)):
            return value[int(index)] if int(index) < len(value) else ""
        if isinstance(value, str) and index == "0":
            return value
        name = "" if part.text in self.values else part.text
        return self._unknown(f"${{{part.text}{part.index}}}", name=name)

    def _defaulted(self, name: str, default: re.Match[str], part: WordPart) -> str:
        sign, otherwise = default[1], default[2]
        text = f"${{{name}{part.op}}}"
        value = self.values.get(name, self.presets.get(name))
        is_set = isinstance(value, list) or (isinstance(value, str) and value != "")
        if sign == "+":
            return self._inner(otherwise) if is_set else self._unknown(text, loose=True)
        if is_set:
            return self.value(name)
        if value == "":
            return self._inner(otherwise) if part.op.startswith(":") else ""
        # Unset here does not mean unset in the job: sbatch passes the user's environment on, so the
        # default is not certain.
        symbol = self._unknown(text, loose=" " in otherwise)
        if sign == "=":
            self.values[name] = symbol
        return symbol

    def _inner(self, text: str) -> str:
        try:
            return self.text(parse_word(text))
        except ShellError:
            return self._unknown(text, loose=True)

    def _changed(self, part: WordPart, value: str) -> str:
        text = "${" + part.text + part.op + "}"
        cut = re.fullmatch(r"(%%?|##?)([^*?\[$`]*)", part.op)
        if cut and constant(value):
            return value.removesuffix(cut[2]) if cut[1][0] == "%" else value.removeprefix(cut[2])
        # ${host%%.*} of a command is still that command's host, expanded in the same place.
        inner = self.symbols.of(value)
        command = inner[0].command if inner else ""
        return self.symbols.char(Symbol(text, inner[0].place if inner else self.place, "", command))

    def arithmetic(self, source: str) -> str:
        """Return the value of an arithmetic expression, a symbol if part of it is unknown."""
        try:
            expanded = self._inner(source) if "$(" in source or "`" in source else source
            return str(_evaluate(_NAME.sub(self._number, expanded)))
        except (_Unknown, ShellError):
            return self._unknown(f"$(({source.strip()}))")

    def _number(self, match: re.Match[str]) -> str:
        if match[0].isdigit():
            return match[0]
        value = self.value(match[1]).strip()
        if not re.fullmatch(r"-?\d+", value):
            raise _Unknown
        return value

    def _command(self, source: str) -> str:
        if _LIST_OF_HOSTS.search(source) and re.search(r"\|\s*wc\s+-l\s*$", source):
            return self.value("SLURM_JOB_NUM_NODES")
        first = re.match(r"(echo|expr)\s+([^|;&<>]*)$", source)
        if first:
            try:
                text = self.text(parse_word(first[2], depth=10))
            except ShellError:
                text = ""
            if first[1] == "echo" and text:
                return text.strip()
            if text and constant(text):
                return self.arithmetic(text.replace("\\", ""))
        return self._unknown(f"$({source})", loose=True, command=source)


class _Unknown(Exception):
    """Part of an expression is unknown."""


_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.Div: operator.floordiv,
}
_COMPARISONS: dict[type, Callable[[int, int], bool]] = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def _evaluate(source: str) -> int:
    # Python's parser reads the arithmetic that both languages share. What it refuses, such as a
    # leading zero, and nodes of other kinds are unknown.
    if len(source) > 500:
        raise _Unknown
    try:
        return _node(ast.parse(source.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError) as error:
        raise _Unknown from error


def _node(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 10**15:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_node(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_node(node.left), _node(node.right))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        return int(_COMPARISONS[type(node.ops[0])](_node(node.left), _node(node.comparators[0])))
    raise _Unknown
