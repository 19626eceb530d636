"""Parse the bash of job scripts into a syntax tree: commands, pipelines, branches, loops,
functions.

Nothing is expanded and nothing is run. A construct that cannot be parsed ends the tree at its line;
the commands before it are kept, as bash would have run them.
"""

from __future__ import annotations

import re

from paceline.diagnose.lint.job.shell.tree import (
    Assign,
    CaseStatement,
    Function,
    GroupStatement,
    If,
    LoopStatement,
    Node,
    ShellScript,
    Simple,
)
from paceline.diagnose.lint.job.shell.words import (
    Cursor,
    ShellError,
    Word,
    WordPart,
    parse_word,
    read_word,
)

_ASSIGN = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+)?=")
_REDIRECT = re.compile(r"(?:\d+|\{\w+\}|&)?(?:<<<|<<-?|<>|>>|>\||<&|>&|<|>)")
_BARE = re.compile(r"[^\s;&|<>()\\'\"$`]+")
DECLARERS = frozenset({"export", "declare", "local", "readonly", "typeset"})
_CLOSERS = frozenset({"then", "elif", "else", "fi", "do", "done", "esac", "}"})


def parse(source: str, *, line: int = 1, depth: int = 0) -> ShellScript:
    """Parse a script that begins at a line, and is nested ``depth`` deep in other scripts."""
    reader = _ShellReader(Cursor(source, line, depth))
    script = ShellScript(reader.nodes, broken=reader.cursor.broken, data_lines=reader.data_lines)
    try:
        reader.read_all()
    except ShellError as error:
        script.error = error
    except RecursionError:
        script.error = ShellError(line, "nested too deeply")
    return script


class _ShellReader:
    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.nodes: list[Node] = []
        self.data_lines: set[int] = set()
        self._heredocs: list[tuple[str, bool, bool, Simple]] = []

    def read_all(self) -> None:
        while True:
            self._list(self.nodes, frozenset())
            if self.cursor.at >= len(self.cursor.source):
                return
            at = self.cursor.at
            if self.cursor.peek() not in ")};&|":
                read_word(self.cursor)
            if self.cursor.at == at:
                self.cursor.at += 1  # skip a surplus bracket or operator

    # blanks, comments, newlines

    def _blanks(self) -> None:
        cursor, source = self.cursor, self.cursor.source
        while cursor.at < len(source):
            char = source[cursor.at]
            if char in " \t\r":
                cursor.at += 1
            elif source.startswith("\\\n", cursor.at):
                cursor.at += 2
            elif source.startswith("\\\r\n", cursor.at):
                cursor.at += 3
            elif char == "#":
                end = source.find("\n", cursor.at)
                cursor.at = len(source) if end < 0 else end
            else:
                return

    def _newlines(self) -> None:
        while True:
            self._blanks()
            if self.cursor.peek() == "\n":
                self.cursor.at += 1
                self._bodies()
            else:
                return

    def _bodies(self) -> None:
        # The bodies of all heredocs of a line follow it, in the order of their operators.
        pending, self._heredocs = self._heredocs, []
        cursor = self.cursor
        for delimiter, tabs, quoted, command in pending:
            line, start, lines = cursor.line, cursor.at, []
            while cursor.at < len(cursor.source):
                end = cursor.source.find("\n", cursor.at)
                end = len(cursor.source) if end < 0 else end
                text = cursor.source[cursor.at : end]
                cursor.at = min(end + 1, len(cursor.source))
                if (text.lstrip("\t") if tabs else text).rstrip("\r") == delimiter:
                    break
                lines.append(text.lstrip("\t") if tabs else text)
            # #SBATCH inside a here-document belongs to the job that it submits.
            self.data_lines.update(range(line, line + len(lines)))
            command.redirects.append(
                ("<<", self._body(start, "\n".join(lines), line, quoted=quoted))
            )

    def _body(self, start: int, text: str, line: int, *, quoted: bool) -> Word:
        # A body that is no valid shell text, such as Python with a lone quote, stays as it is.
        if not quoted:
            try:
                return parse_word(text, line=line, quoted=True, depth=self.cursor.depth)
            except ShellError:
                pass
        return Word((WordPart("text", text, True),), line, text)

    # lists

    def _list(self, into: list[Node], stops: frozenset[str]) -> None:
        joined = ""
        self.cursor.deeper()
        while True:
            self._newlines()
            if self.cursor.at >= len(self.cursor.source) or self.cursor.peek() == ")":
                break
            if self.cursor.peek(2) == ";;" or self.cursor.peek() in ";&|":
                break
            if stops and self._keyword() in stops:
                break
            # A surplus fi or done ends the list, so that what follows is still read.
            if not stops and self._keyword() in _CLOSERS:
                break
            node = self._command()
            if node is None:
                break
            node.joined = joined
            into.append(node)
            joined = self._operator(node)
            if self.cursor.peek(2) in (";;", ";&"):
                break
        self.cursor.depth -= 1

    def _operator(self, node: Node) -> str:
        self._blanks()
        cursor = self.cursor
        if cursor.peek(2) in ("&&", "||"):
            cursor.at += 2
            return cursor.source[cursor.at - 2 : cursor.at]
        if cursor.peek() == "|":
            cursor.at += 2 if cursor.peek(2) == "|&" else 1
            return "|"
        if cursor.peek() == "&":
            node.background = True
            cursor.at += 1
        elif cursor.peek() == ";" and cursor.peek(2) not in (";;", ";&"):
            cursor.at += 1
        return ""

    def _keyword(self) -> str:
        match = _BARE.match(self.cursor.source, self.cursor.at)
        return match[0] if match else ""

    def _expect(self, word: str) -> None:
        self._newlines()
        if self._keyword() != word:
            raise self.cursor.fail(f"{word} is missing")
        self.cursor.at += len(word)

    def _block(self, *stops: str) -> list[Node]:
        body: list[Node] = []
        self._list(body, frozenset(stops))
        self._newlines()
        if self._keyword() not in stops:
            raise self.cursor.fail(f"{stops[-1]} is missing")
        return body

    # commands

    def _command(self) -> Node | None:
        cursor, line = self.cursor, self.cursor.line
        if cursor.peek(2) == "((":
            return self._brackets(line)
        if cursor.peek() == "(":
            cursor.at += 1
            body: list[Node] = []
            self._list(body, frozenset())
            self._newlines()
            if cursor.peek() != ")":
                raise cursor.fail("( is not closed")
            cursor.at += 1
            return self._redirected(GroupStatement(body, True, line))
        keyword = self._keyword()
        if keyword == "[[":
            return self._redirected(self._test(line))
        reader = _COMPOUND.get(keyword)
        if reader is not None:
            cursor.at += len(keyword)
            return self._redirected(reader(self, line))
        # The command behind them starts all the same, and that is what checks ask for.
        if keyword in ("!", "time", "coproc"):
            cursor.at += len(keyword)
            self._blanks()
            node = self._command()
            if keyword == "!" and isinstance(node, Simple):
                node.negated = not node.negated
            return node
        return self._simple(line)

    def _redirected(self, node: Node) -> Node:
        """Skip the redirections of a compound command; no check uses them."""
        spare = Simple(line=node.line)
        while True:
            self._blanks()
            if not _REDIRECT.match(self.cursor.source, self.cursor.at):
                return node
            self._redirect(spare)

    def _brackets(self, line: int) -> Node:
        cursor, depth = self.cursor, 0
        for match in re.compile(r"[()]").finditer(cursor.source, cursor.at):
            depth += 1 if match[0] == "(" else -1
            if depth == 0:
                raw = cursor.source[cursor.at : match.end()]
                cursor.at = match.end()
                inner = raw[2:-2]
                words = [
                    Word((WordPart("text", "(("),), line, "(("),
                    Word((WordPart("arith", inner),), line, inner),
                ]
                return Simple(words=words, line=line, end_line=cursor.line)
        raise cursor.fail("(( is not closed")

    def _test(self, line: int) -> Node:
        """Parse ``[[ ... ]]``, in which brackets and comparison signs are words."""
        cursor = self.cursor
        command = Simple(line=line)
        while cursor.at < len(cursor.source):
            self._blanks()
            if cursor.peek() == "\n":
                cursor.at += 1
                continue
            sign = re.compile(r"&&|\|\||[&|()<>;]").match(cursor.source, cursor.at)
            if sign:
                cursor.at = sign.end()
                command.words.append(Word((WordPart("text", sign[0]),), cursor.line, sign[0]))
                continue
            word = read_word(cursor)
            command.words.append(word)
            if word.raw == "]]":
                command.end_line = cursor.line
                return command
        raise cursor.fail("]] is missing")

    def _brace(self, line: int) -> Node:
        body = self._block("}")
        self.cursor.at += 1
        return GroupStatement(body, False, line)

    def _if(self, line: int) -> Node:
        branches: list[tuple[list[Node], list[Node]]] = []
        otherwise: list[Node] | None = None
        while True:
            condition = self._block("then")
            self._expect("then")
            branches.append((condition, self._block("elif", "else", "fi")))
            keyword = self._keyword()
            self.cursor.at += len(keyword)
            if keyword == "else":
                otherwise = self._block("fi")
                self._expect("fi")
            if keyword != "elif":
                return If(branches, otherwise, line)

    def _while(self, line: int) -> Node:
        condition = self._block("do")
        self._expect("do")
        body = self._block("done")
        self._expect("done")
        return LoopStatement(condition, body, "", [], line)

    def _for(self, line: int) -> Node:
        self._blanks()
        name, words = "", []
        if self.cursor.peek(2) == "((":
            head = self._brackets(line)
            assert isinstance(head, Simple)
            match = re.match(r"\s*([A-Za-z_]\w*)\s*=", head.words[1].raw)
            name = match[1] if match else ""
        else:
            name = read_word(self.cursor).raw
            self._newlines()
            if self._keyword() == "in":
                self.cursor.at += 2
                words = self._words()
        self._blanks()
        if self.cursor.peek() == ";":
            self.cursor.at += 1
        self._newlines()
        opening, closing = ("{", "}") if self._keyword() == "{" else ("do", "done")
        self._expect(opening)
        body = self._block(closing)
        self._expect(closing)
        return LoopStatement([], body, name, words, line)

    def _words(self) -> list[Word]:
        words: list[Word] = []
        while True:
            self._blanks()
            if self.cursor.at >= len(self.cursor.source) or self.cursor.peek() in "\n;&|)":
                return words
            if self.cursor.peek() in "<>(":
                raise self.cursor.fail("unexpected bracket")
            words.append(read_word(self.cursor))

    def _case(self, line: int) -> Node:
        self._blanks()
        read_word(self.cursor)
        self._expect("in")
        bodies: list[list[Node]] = []
        while True:
            self._newlines()
            if self._keyword() == "esac":
                self.cursor.at += 4
                return CaseStatement(bodies, line)
            # Patterns are not parsed: all clauses are walked, whatever the word is. One character
            # is passed before, the bracket that may open a pattern.
            end = self.cursor.source.find(")", self.cursor.at + 1)
            if end < 0:
                raise self.cursor.fail("esac is missing")
            self.cursor.at = end + 1
            body: list[Node] = []
            self._list(body, frozenset({"esac"}))
            bodies.append(body)
            self._newlines()
            match = re.compile(r";;&?|;&").match(self.cursor.source, self.cursor.at)
            if match:
                self.cursor.at = match.end()
            elif self._keyword() != "esac":
                raise self.cursor.fail("esac is missing")

    def _function(self, line: int) -> Node:
        self._blanks()
        name = self._keyword()
        self.cursor.at += len(name)
        self._blanks()
        if self.cursor.peek() == "(":
            self._pass_brackets()
        return self._body_of(name, line)

    def _pass_brackets(self) -> None:
        self.cursor.at += 1
        self._blanks()
        if self.cursor.peek() != ")":
            raise self.cursor.fail("a function's ) is missing")
        self.cursor.at += 1

    def _body_of(self, name: str, line: int) -> Node:
        self._newlines()
        node = self._command()
        return Function(name, [node] if node else [], line)

    def _simple(self, line: int) -> Node | None:
        cursor = self.cursor
        command = Simple(line=line, end_line=line)
        while cursor.at < len(cursor.source):
            self._blanks()
            char = cursor.peek()
            if _REDIRECT.match(cursor.source, cursor.at) and cursor.peek(2) not in ("<(", ">("):
                self._redirect(command)
                continue
            if not char or char in "\n;&|)":
                break
            if char == "(":
                if len(command.words) == 1 and not command.assigns and command.words[0].bare:
                    self._pass_brackets()
                    return self._body_of(command.words[0].bare, line)
                raise cursor.fail("unexpected bracket")
            self._argument(command)
        command.end_line = cursor.line
        return command if command.words or command.assigns or command.redirects else None

    def _argument(self, command: Simple) -> None:
        declares = bool(command.words) and command.words[0].bare in DECLARERS
        match = _ASSIGN.match(self.cursor.source, self.cursor.at)
        if match and (not command.words or declares):
            command.assigns.append(self._assign(match))
            return
        word = read_word(self.cursor)
        # The lines of python -c "..." are data: a # SBATCH there is no directive.
        if command.words and "\n" in word.raw:
            self.data_lines.update(range(word.line, self.cursor.line + 1))
        command.words.append(word)

    def _assign(self, match: re.Match[str]) -> Assign:
        cursor, line = self.cursor, self.cursor.line
        cursor.at = match.end()
        value: Word | tuple[Word, ...]
        if cursor.peek() == "(":
            cursor.at += 1
            words: list[Word] = []
            while True:
                self._newlines()
                if cursor.peek() == ")":
                    break
                if cursor.at >= len(cursor.source) or cursor.peek() in ";&|<>(":
                    raise cursor.fail("( is not closed")
                words.append(read_word(cursor))
            cursor.at += 1
            value = tuple(words)
        else:
            value = read_word(cursor)
            if "\n" in value.raw:
                self.data_lines.update(range(line, cursor.line + 1))
        return Assign(match[1], value, bool(match[3]), match[2] or "", line)

    def _redirect(self, command: Simple) -> None:
        cursor = self.cursor
        match = _REDIRECT.match(cursor.source, cursor.at)
        assert match is not None
        cursor.at = match.end()
        self._blanks()
        target = read_word(cursor) if cursor.peek() not in "\n;|()" else Word((), cursor.line, "")
        operator = match[0].lstrip("0123456789&")
        if operator in ("<<", "<<-"):
            delimiter = "".join(part.text for part in target.parts)
            # A quote anywhere in the delimiter keeps the whole body from being expanded.
            quoted = any(part.quoted for part in target.parts)
            self._heredocs.append((delimiter, operator == "<<-", quoted, command))
        else:
            command.redirects.append((match[0], target))


_COMPOUND = {
    "{": _ShellReader._brace,
    "if": _ShellReader._if,
    "while": _ShellReader._while,
    "until": _ShellReader._while,
    "for": _ShellReader._for,
    "select": _ShellReader._for,
    "case": _ShellReader._case,
    "function": _ShellReader._function,
}
