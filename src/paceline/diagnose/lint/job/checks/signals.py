"""Check what ends a job: signals that do not reach the program, background programs, ``wait``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paceline.diagnose.lint.job.case import Case
from paceline.diagnose.lint.job.directives import Directive
from paceline.diagnose.lint.job.launches import Launch
from paceline.diagnose.lint.job.sbatch_options import names
from paceline.diagnose.lint.job.shell.trace import CommandCall, Trap
from paceline.diagnose.lint.job.shell.values import BATCH, NODE
from paceline.errors import Finding

_WAITS = re.compile(r"(?<![-\w$.{/])wait\b(?![-=\w])")
_WAIT_LINE = re.compile(r"(?:^|[;&]\s*)wait(\s+\"?\$\{?\w+\}?\"?)?\s*$")
_NUMBERS = {"10": "USR1", "12": "USR2"}  # of Linux
# Their default action ends a process, and torchrun has no handler for them unless it is told to.
_DEADLY = ("USR1", "USR2")
_INCLUDES = re.compile(r"\s*(source|\.|eval)\s")
_AT_ONCE = names("echo date hostname mkdir cp mv rm ls cat touch module conda")
_FORWARDS = (
    "the launcher forwards TERM, INT, HUP and QUIT only; all processes end, and none of them can"
    " save"
)
_ENDS_THE_JOB = "when the batch script ends Slurm ends the job and kills what still runs"


def signals(case: Case) -> Iterator[Finding]:
    """Find --signal options whose signal reaches neither the program nor the script's trap."""
    directive = case.job.directives.last("signal")
    if directive is None or not case.training:
        return
    match = re.fullmatch(r"(?:(R?B?R?):)?(?:SIG)?(\w+)(?:@\d+)?", directive.value)
    if match is None:
        return
    # sbatch takes numbers and names, with and without SIG.
    name = _NUMBERS.get(match[2], match[2].upper())
    traps = [
        trap
        for trap in case.trace.traps
        if name in {signal.removeprefix("SIG").upper() for signal in trap[0]}
    ]
    # With B: Slurm signals the batch shell only, without it the steps only, which may have a trap.
    if any(trap[3] == NODE for trap in traps):
        return
    if "B" in (match[1] or ""):
        yield from _to_batch(case, directive.line, name, traps)
    else:
        yield from _to_steps(case, directive, name, traps)


def _to_steps(case: Case, directive: Directive, name: str, traps: list[Trap]) -> Iterator[Finding]:
    if traps:
        yield case.finding(
            "signal-not-to-batch",
            f"--signal={directive.value} goes to the steps only; the trap for {name} in the batch"
            " script never runs",
            line=directive.line,
            more=[traps[0][2]],
            why="without B: the batch shell is not signalled; it runs a trap only between commands",
            fix=(
                f"#SBATCH --signal=B:{directive.value.rpartition(':')[2]}, and start the program"
                " with & and write wait below it"
            ),
            severity="hint" if any(launch.call.step for launch in case.training) else "warning",
        )
    # A program without srun is a child of the batch shell, which Slurm does not signal here.
    elif not case.spreads and all(launch.call.step is None for launch in case.training):
        yield case.finding(
            "signal-not-to-batch",
            f"--signal={directive.value} goes to steps, and the program runs in the batch shell,"
            " which is not a step",
            line=directive.line,
            more=[case.training[0].call.line],
            why=(
                "the signal reaches nobody, and the program is ended at the time limit without a"
                " warning"
            ),
            fix=f"srun {case.text(case.training[0].call.line)}".removesuffix("\\").strip(),
            severity="hint",
        )
    elif name in _DEADLY and (launch := _launcher_without_handler(case)):
        _, at_sign, seconds = directive.value.partition("@")
        yield case.finding(
            "signal-not-forwarded",
            f"--signal={directive.value} goes to torchrun, which does not forward {name} and dies"
            " of it",
            line=directive.line,
            more=[launch.call.line],
            why=_FORWARDS,
            fix=f"#SBATCH --signal=TERM{at_sign}{seconds}, or {_handler_option(name)}",
            severity="warning",
        )


def _launcher_without_handler(case: Case) -> Launch | None:
    """Return a torchrun in a step that certainly has no handler for the user's signals, or None."""
    for launch in case.training:
        if launch.kind not in ("torchrun", "torch.distributed.launch") or launch.call.step is None:
            continue
        # torch.distributed.elastic handles TERM, INT, HUP and QUIT unless this option says more.
        if "signals_to_handle" not in launch.options and not launch.vague:
            return launch
    return None


def _handler_option(name: str) -> str:
    return f"torchrun --signals-to-handle=SIG{name},SIGTERM,SIGINT"


def _to_batch(case: Case, line: int, name: str, traps: list[Trap]) -> Iterator[Finding]:
    launch = case.training[0]
    waiting = any(other.call.background for other in case.training) and case.trace.waits
    # exec replaces the batch shell by the program, which then gets the signal itself.
    if re.search(r"^\s*exec\b", "\n".join(case.lines), re.MULTILINE):
        return
    signal = "TERM" if name in _DEADLY and _launcher_without_handler(case) else name
    if not traps:
        yield case.finding(
            "signal-not-forwarded",
            f"--signal=B: sends {name} to the batch shell only, and the script has no trap for it",
            line=line,
            more=[launch.call.line],
            why="the program does not get the signal, which ends the batch shell or is lost",
            fix=(
                f"trap 'kill -{signal} $PID' {name}; srun ... & PID=$!; wait $PID; wait $PID  (the"
                " trap ends one wait)"
            ),
            severity="warning",
        )
    elif not waiting and not any(launch.call.background for launch in case.training):
        yield case.finding(
            "signal-not-forwarded",
            f"the trap for {name} runs only after the program has ended: it is started in the"
            " foreground",
            line=traps[0][2],
            more=[line, launch.call.line],
            why="bash runs a trap when the command that it waits for is over",
            fix="end the launch with &, and write below it: wait; wait  (the trap ends the first)",
            severity="warning",
        )
    elif waiting:
        yield from _forwarded(case, line, name, traps[0])


def _forwarded(case: Case, line: int, name: str, trap: Trap) -> Iterator[Finding]:
    """Find traps that forward the signal to a launcher that dies of it, or end the only wait."""
    # kill without a signal sends TERM
    kill = re.search(r"\bkill\s+(?:(?:-s\s+|-)(?:SIG)?(\w+)\s+)?[$\"%]", trap[1])
    signal = (kill[1] or "TERM").upper() if kill else ""
    if _NUMBERS.get(signal, signal) in _DEADLY and (launch := _launcher_without_handler(case)):
        yield case.finding(
            "signal-not-forwarded",
            f"the trap sends {signal} to torchrun, which does not forward it and dies of it",
            line=trap[2],
            more=[line, launch.call.line],
            why=_FORWARDS,
            fix=f"kill -TERM in the trap, or {_handler_option(name)}",
            severity="warning",
        )
    elif kill and (at := _only_wait(case, trap)):
        yield case.finding(
            "signal-not-forwarded",
            f"the trap for {name} ends the only wait: the script ends while the program still"
            " saves",
            line=at,
            more=[line, trap[2]],
            why=_ENDS_THE_JOB,
            fix=f"wait{case.text(at).rpartition('wait')[2]}  (once more, below it)",
            severity="warning",
        )


def _only_wait(case: Case, trap: Trap) -> int:
    """Return the line of the only wait, which the trap ends for good; 0 if that is not certain."""
    # A signal with a trap makes `wait` return at once. The script then lives on only if the trap
    # itself waits, a loop comes back to the wait, or commands that last follow it.
    if re.search(r"\b(wait|exit|sleep|scontrol|while|until)\b", trap[1]):
        return 0
    if len(_WAITS.findall(case.code)) != 1 or re.search(r"\b(while|until|for)\b", case.code):
        return 0
    lines = [
        at
        for at, line in enumerate(case.lines, 1)
        if not line.lstrip().startswith("#") and _WAITS.search(line)
    ]
    if len(lines) != 1 or not _WAIT_LINE.search(case.text(lines[0])):
        return 0
    goes_on = any(call.line > lines[0] and _lasts(call) for call in case.trace.calls)
    return 0 if goes_on else lines[0]


def background_steps(case: Case) -> Iterator[Finding]:
    """Find background programs that still run when the script ends."""
    # A script that is not a batch script may end while its programs run on.
    if not case.job.directives.any or _WAITS.search(case.code):
        return
    launched = {id(launch.call) for launch in case.launches}
    # From the end of the script back: the first command in the foreground that lasts keeps the
    # script, and with it the job, alive.
    for call in reversed(case.trace.calls):
        if not call.background:
            if _lasts(call):
                return  # the script runs as long as this command
        elif any(_INCLUDES.match(line) for line in case.lines[call.line :]):
            return  # the other file may wait
        elif call.step is not None or id(call) in launched:
            yield case.finding(
                "background-steps-not-awaited",
                f"{call.name} is started in the background, and the script ends without waiting"
                " for it",
                line=call.line,
                more=[call.end_line],
                why=_ENDS_THE_JOB,
                fix="wait  (as the last line of the script)",
                severity="warning" if call.maybe and call.place == BATCH else "error",
            )
            return


def _lasts(call: CommandCall) -> bool:
    """Return whether a command may take long enough for a background program to finish."""
    if call.name == "sleep" and len(call.args) > 1:
        # A pause of seconds separates two starts, a long one waits for them.
        return call.looped or not re.fullmatch(r"\d{1,2}s?", call.args[1].text)
    return call.looped or call.name not in _AT_ONCE


CHECKS = (signals, background_steps)
