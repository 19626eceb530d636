"""Interpret a shell script symbolically: record the programs that it would start and the variables
it would set.

Both branches of an undecided condition are walked, and variables that differ afterwards are
unknown. The body of a loop is walked once, with unknown values of the variables that it changes.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from paceline.diagnose.lint.job.shell.conditions import TESTS, decide, is_test
from paceline.diagnose.lint.job.shell.parser import DECLARERS, parse
from paceline.diagnose.lint.job.shell.trace import CommandCall, Submitted, Trace, TracedValue
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
    assigned,
)
from paceline.diagnose.lint.job.shell.values import (
    BATCH,
    NODE,
    Arg,
    Expander,
    Symbol,
    Symbols,
    Value,
    constant,
)
from paceline.diagnose.lint.job.shell.words import Word
from paceline.diagnose.lint.job.shell.wrappers import (
    WrappedStart,
    base_name,
    nested,
    peel,
    runs_stdin,
)

# Functions that call each other twice would otherwise make the work exponential.
MOST_COMMANDS = 2_000
MOST_NESTED = 6

# Set by the login or by Slurm, and exported already: an assignment changes what tasks see.
_EXPORTED_BY_LOGIN = re.compile(
    r"PATH|LD_LIBRARY_PATH|PYTHONPATH|HOME|USER|SHELL|TMPDIR|LANG|LC_\w+|SLURM\w*|CONDA\w*"
)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
# Files that set up a shell or an environment, and set no variable that a check uses.
_SETUP_FILE = re.compile(r"(^|/)(activate|conda\.sh|mamba\.sh|\.bashrc|\.bash_profile|\.profile)$")


@dataclass(frozen=True)
class _Frame:
    """How the commands that are walked run."""

    place: str = BATCH
    step: WrappedStart | None = None
    maybe: bool = False
    looped: bool = False
    background: bool = False
    wrappers: tuple[str, ...] = ()
    depth: int = 0
    line: int = 0


def interpret(script: ShellScript, presets: Mapping[str, str], symbols: Symbols) -> Trace:
    """Walk a batch script; ``presets`` are Slurm's variables that follow from the directives."""
    trace = Trace(symbols)
    walker = _Walker(trace, Expander(symbols, {}, presets=presets), set(), _Budget())
    walker.walk(script.nodes, _Frame())
    return trace


class _Budget:
    def __init__(self) -> None:
        self.commands = 0

    def spent(self) -> bool:
        self.commands += 1
        return self.commands > MOST_COMMANDS


class _Walker:
    """One shell: its variables, functions and files, and the trace that it extends."""

    def __init__(
        self, trace: Trace, expander: Expander, exported: set[str], budget: _Budget
    ) -> None:
        self.trace = trace
        self.expander = expander
        self.exported = exported
        self.budget = budget
        self.functions: dict[str, list[Node]] = {}
        self.files: dict[str, tuple[str, int]] = {}
        self.ended = False
        self.export_all = False
        self.folder = ""

    # the tree

    def walk(self, nodes: list[Node], frame: _Frame) -> None:
        decided: bool | None = True
        for at, node in enumerate(nodes):
            if self.ended or self.budget.spent():
                return
            # What is skipped does not change the outcome, so that c runs in `a && b || c`.
            if node.joined == "&&" and decided is False:
                continue
            if node.joined == "||" and decided is True and isinstance(nodes[at - 1], Simple):
                continue
            unsure = node.joined in ("&&", "||") and decided is None
            inner = replace(
                frame, maybe=frame.maybe or unsure, background=frame.background or node.background
            )
            self._visit(node, inner, maybe=unsure)
            decided = self._outcome(node)

    def _outcome(self, node: Node) -> bool | None:
        if not isinstance(node, Simple) or not node.words:
            return True
        # Of a test the outcome may follow from the text: [ $SLURM_NNODES -gt 1 ] with --nodes=2.
        if node.words[0].raw in TESTS:
            return decide([node], self.expander)
        # These are asked rather than run. Other commands are assumed to succeed: the alternative
        # after || is for failures.
        if node.joined == "||" or node.words[0].raw in ("command", "which", "type", "grep"):
            return None
        return True

    def _visit(self, node: Node, frame: _Frame, *, maybe: bool) -> None:
        if isinstance(node, Simple):
            self._perhaps(partial(self._simple, node, frame), maybe=maybe)
        elif isinstance(node, GroupStatement):
            self._group(node, frame, maybe=maybe)
        elif isinstance(node, If):
            self._if(node, frame)
        elif isinstance(node, LoopStatement):
            self._loop(node, frame)
        elif isinstance(node, CaseStatement):
            inner = replace(frame, maybe=True)
            # None of the patterns may match.
            self._either([partial(self.walk, body, inner) for body in node.bodies], True)
        elif isinstance(node, Function):
            self.functions[node.name] = node.body

    def _perhaps(self, action: Callable[[], None], *, maybe: bool) -> None:
        """Run an action; under an unknown condition, keep only values that it does not change."""
        if maybe:
            self._either([action], True)
        else:
            action()

    def _group(self, node: GroupStatement, frame: _Frame, *, maybe: bool) -> None:
        ended, folder = self.ended, self.folder
        self._perhaps(partial(self.walk, node.body, frame), maybe=maybe)
        # exit ends the subshell only, or a group that may not run at all.
        if node.subshell or maybe:
            self.ended = ended
        if node.subshell:
            self.folder = folder

    def _if(self, node: If, frame: _Frame) -> None:
        alternatives: list[Callable[[], None]] = []
        for condition, body in node.branches:
            # `if srun python train.py; then` starts the program in the condition.
            if not is_test(condition):
                self.walk(condition, replace(frame, maybe=True))
            outcome = decide(condition, self.expander)
            if outcome is False:
                continue
            if outcome is True and not alternatives:
                self.walk(body, frame)
                return
            alternatives.append(partial(self.walk, body, replace(frame, maybe=True)))
            if outcome is True:
                self._either(alternatives, False)
                return
        if node.otherwise is not None and not alternatives:
            self.walk(node.otherwise, frame)
        elif node.otherwise is not None:
            alternatives.append(lambda: self.walk(node.otherwise or [], replace(frame, maybe=True)))
            self._either(alternatives, False)
        elif alternatives:
            self._either(alternatives, True)

    def _either(self, alternatives: list[Callable[[], None]], also_none: bool) -> None:
        """Walk alternatives from the same state, and keep the values on which they agree."""
        before, exported = dict(self.expander.values), set(self.exported)
        ends: list[dict[str, Value]] = [before] if also_none else []
        for alternative in alternatives:
            self.expander.values.clear()
            self.expander.values.update(before)
            alternative()
            # A branch that exits leaves nothing behind: `if [ -z "$1" ]; then exit 1; fi`
            if not self.ended:
                ends.append(dict(self.expander.values))
            self.ended = False
        self.exported |= exported
        self.ended = not ends
        self.expander.values.clear()
        for name in {name for end in ends for name in end}:
            values = [end.get(name) for end in ends]
            same = all(value == values[0] for value in values)
            first = values[0]
            if same and first is not None:
                self.expander.values[name] = first
            else:
                self.expander.values[name] = self._vague(name)

    def _vague(self, name: str) -> str:
        return self.trace.symbols.char(Symbol(f"${name}", self.expander.place, "", "", True))

    def _loop(self, node: LoopStatement, frame: _Frame) -> None:
        # The body runs any number of times: what it assigns is unknown from its first line on.
        for name in {node.name, *assigned(node.body)} - {""}:
            self.expander.values[name] = self._vague(name)
        if node.name and node.words:
            items = [arg for word in node.words for arg in self.expander.fields(word)]
            is_known = len(items) == 1 and constant(items[0].text)
            # The variable of a loop is one word in each turn, whatever the list has.
            single = self.trace.symbols.char(Symbol(f"${node.name}", self.expander.place))
            self.expander.values[node.name] = items[0].text if is_known else single
        inner = replace(frame, looped=True)
        if not is_test(node.condition):
            self.walk(node.condition, replace(inner, maybe=True))
        self.walk(node.body, inner)
        self.ended = False
        for name in assigned(node.body):
            self.expander.values[name] = self._vague(name)

    # commands

    def _simple(self, node: Simple, frame: _Frame) -> None:
        if not node.words or node.words[0].bare in DECLARERS:
            self._assign(node, frame)
            return
        if node.words[0].raw in ("[[", "((", "let"):
            for name in assigned([node]):
                self._set_unknown(name, node, frame)
            return
        args = [arg for word in node.words for arg in self.expander.fields(word)]
        if not args:
            return
        name = args[0].text
        # A function that calls itself would not end here: its loop ends at run time only.
        if name in self.functions and frame.depth < MOST_NESTED:
            self._function(name, args[1:], frame)
        elif name in _BUILTINS:
            _BUILTINS[name](self, args, node, frame)
        elif name not in _WITHOUT_EFFECT:
            self._start(args, node, frame)

    def _function(self, name: str, args: list[Arg], frame: _Frame) -> None:
        before, self.expander.arguments = self.expander.arguments, [arg.text for arg in args]
        self.walk(self.functions[name], replace(frame, depth=frame.depth + 1))
        self.expander.arguments, self.ended = before, False

    def _assign(self, node: Simple, frame: _Frame) -> None:
        command = node.words[0].bare if node.words else ""
        flags = [word.raw for word in node.words[1:]]
        declares_exported = command in ("declare", "typeset") and "-x" in flags
        exports = command == "export" or self.export_all or declares_exported
        for assign in node.assigns:
            value = self._value(assign)
            self.set(assign.name, value, frame, line=assign.line, export=exports)
        # `export "NAME=value"` is one word in quotes
        for word in node.words[1:]:
            name, equals, text = self.expander.text(word).partition("=")
            if equals and _IDENTIFIER.fullmatch(name):
                self.set(name, text, frame, line=word.line, export=exports)
        # `export NAME` exports what was set before, or what will be
        for flag in flags:
            if exports and _IDENTIFIER.fullmatch(flag):
                self.exported.add(flag)
                if flag in self.expander.values:
                    self._note(flag, frame, node.line)

    def _value(self, assign: Assign) -> Value:
        before = self.expander.values.get(assign.name)
        if isinstance(assign.value, tuple):
            fields = [arg.text for word in assign.value for arg in self.expander.fields(word)]
            return [*before, *fields] if assign.append and isinstance(before, list) else fields
        text = self.expander.text(assign.value)
        # array[i]=x changes one element, and i is rarely known.
        if assign.index:
            return self._vague(assign.name)
        if assign.append:
            whole = self.expander.value(assign.name) + text
            if not isinstance(before, list):
                return whole
            # NAME+=text extends the first element of an array. One that may be several words, or
            # none, stays so: extended it would pass for one argument.
            symbol = self.trace.symbols.only(before[0]) if before else None
            return before if symbol is not None and symbol.loose else [whole, *before[1:]]
        return text

    def set(self, name: str, value: Value, frame: _Frame, *, line: int, export: bool) -> None:
        """Set a variable, and record the setting."""
        self.expander.values[name] = value
        if export or _EXPORTED_BY_LOGIN.fullmatch(name):
            self.exported.add(name)
        self._note(name, frame, line)

    def _note(self, name: str, frame: _Frame, line: int) -> None:
        value = self.expander.values[name]
        self.trace.settings.append(
            TracedValue(name, value, line, name in self.exported, frame.place, frame.maybe)
        )

    # builtins

    def _exit(self, args: list[Arg], node: Simple, frame: _Frame) -> None:
        # `return` too: _function lets its caller go on.
        self.ended = True

    def _eval(self, args: list[Arg], node: Simple, frame: _Frame) -> None:
        self._run_text(" ".join(arg.text for arg in args[1:]), args[0].line, frame)

    def _trap(self, args: list[Arg], node: Simple, frame: _Frame) -> None:
        handler, *signals = [arg.text for arg in args[1:]] or [""]
        # '' ignores a signal, and - restores what it does by default.
        if handler not in ("", "-"):
            self.trace.traps.append((tuple(signals), handler, node.line, frame.place))

    def _wait(self, args: list[Arg], node: Simple, frame: _Frame) -> None:
        self.trace.waits = True

    def _unset(self, args: list[Arg], node: Simple, frame: _Frame) -> None:
        for arg in args[1:]:
            self.expander.values.pop(arg.text, None)

    def _change_folder(self, args: list[Arg], node: Simple, frame: _Frame) -> None:
        self.folder = os.path.join(self.folder, args[1].text if len(args) > 1 else "~")

    def _source(self, args: list[Arg], node: Simple, frame: _Frame) -> None:
        target = args[1].text if len(args) > 1 else ""
        if target in self.files:
            self._run_text(*self.files[target], frame)
        # A sourced file may set any variable: checks for missing ones are silent from here on.
        elif not _SETUP_FILE.search(target):
            self.trace.sourced = True

    def _set(self, args: list[Arg], node: Simple, frame: _Frame) -> None:
        texts = [arg.text for arg in args[1:]]
        flags = "".join(text[1:] for text in texts if text.startswith("-"))
        self.export_all = self.export_all or "a" in flags or "allexport" in texts

    def _read(self, args: list[Arg], node: Simple, frame: _Frame) -> None:
        """Set the variables of ``read``, ``mapfile`` and ``getopts`` to unknown values."""
        for arg in args[1:]:
            if _IDENTIFIER.fullmatch(arg.text):
                self._set_unknown(arg.text, node, frame)

    def _printf(self, args: list[Arg], node: Simple, frame: _Frame) -> None:
        if len(args) > 2 and args[1].text == "-v":
            self._set_unknown(args[2].text, node, frame)
        self._start(args, node, frame)

    def _set_unknown(self, name: str, node: Simple, frame: _Frame) -> None:
        self.set(name, self._vague(name), frame, line=node.line, export=False)

    # programs

    def _start(self, args: list[Arg], node: Simple, frame: _Frame) -> None:
        assignments = {assign.name: self._value(assign) for assign in node.assigns}
        body = next((word for sign, word in node.redirects if sign == "<<"), None)
        self._remember(args, node, body)
        peeled = peel(args)
        if not peeled.args:
            return
        if base_name(peeled.args[0].text) == "sbatch":
            self._submit(peeled.args, node, body)
        wrappers = frame.wrappers + peeled.wrappers
        inner = replace(frame, wrappers=wrappers, line=frame.line or node.line)
        # What a step runs is expanded on the nodes, where SLURM_NODEID and the host differ.
        if peeled.step is not None:
            inner = replace(inner, place=NODE, step=frame.step or peeled.step)
        env = {**self._env(), **assignments, **peeled.env}
        if body is not None and body.is_verbatim and runs_stdin(peeled.args):
            self.trace.python.append(Arg(body.raw, body.line))
        script = self._nested_script(peeled.args, body)
        if script is not None and frame.depth < MOST_NESTED:
            self._child(script, env, replace(inner, depth=frame.depth + 1))
        else:
            self._call(peeled.args, env, inner, node)

    def _nested_script(self, args: list[Arg], body: Word | None) -> Arg | None:
        """Return the script that a shell runs: its ``-c``, its here-document or a written file."""
        script = nested(args)
        if script is not None:
            return script
        if body is not None and base_name(args[0].text) in ("bash", "sh"):
            return Arg(self.expander.text(body), body.line)
        return self._file(args)

    def _submit(self, args: list[Arg], node: Simple, body: Word | None) -> None:
        if body is not None:
            quoted = body.is_verbatim
            options = any(arg.text.startswith("-") for arg in args[1:])
            self.trace.submitted.append(Submitted("heredoc", body.raw, body.line, quoted, options))
        for before, word in zip([None, *node.words], node.words, strict=False):
            if word.raw.startswith("--wrap=") or (before is not None and before.raw == "--wrap"):
                quoted = all(part.kind == "text" for part in word.parts)
                self.trace.submitted.append(Submitted("wrap", word.raw, word.line, quoted, True))

    def _call(self, args: list[Arg], env: dict[str, Value], frame: _Frame, node: Simple) -> None:
        if args[0].text.startswith("-") and self.trace.calls:
            # a line of options only: the command before it was truncated
            self.trace.calls[-1] = replace(self.trace.calls[-1], chained=True)
        line = frame.line or node.line
        call = CommandCall(
            tuple(args),
            line,
            max(node.end_line, line),
            frame.place,
            frame.step,
            env,
            maybe=frame.maybe,
            looped=frame.looped,
            background=frame.background,
            wrappers=frame.wrappers,
            folder=self.folder,
        )
        self.trace.calls.append(call)

    def _env(self) -> dict[str, Value]:
        return {
            name: value for name, value in self.expander.values.items() if name in self.exported
        }

    def _remember(self, args: list[Arg], node: Simple, body: Word | None) -> None:
        """Store a file that the script writes from a heredoc, in case the script runs it later."""
        targets = [self.expander.text(word) for sign, word in node.redirects if sign in (">", ">|")]
        targets += [arg.text for arg in args[1:2] if args[0].text == "tee"]
        if body is not None and targets:
            self.files[targets[0]] = (self.expander.text(body), body.line)

    def _file(self, args: list[Arg]) -> Arg | None:
        words = [arg.text for arg in args if not arg.text.startswith("-")]
        if words and base_name(words[0]) in ("bash", "sh"):
            words = words[1:]
        name = words[0] if words else ""
        entry = self.files.get(name) or self.files.get(name.removeprefix("./"))
        return Arg(*entry) if entry else None

    def _run_text(self, text: str, line: int, frame: _Frame) -> None:
        if frame.depth < MOST_NESTED:
            # Each level of eval counts as ten of the parser, whose limit they share.
            script = parse(text, line=line, depth=10 * frame.depth)
            self.walk(script.nodes, replace(frame, depth=frame.depth + 1))

    def _child(self, script: Arg, env: dict[str, Value], frame: _Frame) -> None:
        """Walk a nested script in a child shell, which sees exported variables only."""
        tree = parse(script.text, line=script.line, depth=8 * frame.depth)
        self.trace.broken += tree.broken
        ours = self.expander
        # Reported for tasks only: in the batch shell an unset variable is often a default.
        lost = frozenset(ours.values) - frozenset(env) if frame.place == NODE else frozenset()
        expander = Expander(
            ours.symbols, dict(env), place=frame.place, presets=ours.presets, lost=lost | ours.lost
        )
        walker = _Walker(self.trace, expander, set(env), self.budget)
        walker.functions = self.functions
        walker.files = self.files
        walker.folder = self.folder
        walker.walk(tree.nodes, frame)


_BUILTINS: dict[str, Callable[[_Walker, list[Arg], Simple, _Frame], None]] = {
    "exit": _Walker._exit,
    "return": _Walker._exit,
    "source": _Walker._source,
    ".": _Walker._source,
    "eval": _Walker._eval,
    "trap": _Walker._trap,
    "wait": _Walker._wait,
    "set": _Walker._set,
    "unset": _Walker._unset,
    "read": _Walker._read,
    "mapfile": _Walker._read,
    "readarray": _Walker._read,
    "getopts": _Walker._read,
    "printf": _Walker._printf,
    "cd": _Walker._change_folder,
    "pushd": _Walker._change_folder,
}
_WITHOUT_EFFECT = frozenset(
    {"shift", "module", "ml", "ulimit", "shopt", "true", "false", ":", "pwd", "umask"}
)
