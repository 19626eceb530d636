"""Judge ``paceline verify`` by planted bugs, and print a table: found, first named, seconds.

python tests/parallel/table.py            # the 40 bugs and the 20 right cases
python tests/parallel/table.py --only muon_ema
python tests/parallel/table.py --right    # the right cases alone
python tests/parallel/table.py --more     # the bugs in reserve
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from planted import Bug, Right, program_text, read_bugs, read_right

LIMIT_S = 120
STEPS = "4"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What verify said of one program.

    Attributes:
        status: Exit status; -1 if it was ended at the limit.
        finding: Name of its first finding, or "".
        first: The name with which the evidence begins, ``first: NAME``, or "".
    """

    status: int
    finding: str
    first: str
    seconds: float


def verify(name: str, text: str, *, world: int, arguments: tuple[str, ...]) -> Verdict:
    """Run ``paceline verify`` on a program in a folder of its own."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"{name}.py").write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "paceline", "verify", "--json", "--steps", STEPS]
        command += ["--world", f"1,{world}", f"{name}.py", "--steps", STEPS, *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (
            open(Path(folder, "err"), "w") as err,
            subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                start_new_session=True,
            ) as process,
        ):
            try:
                out, _ = process.communicate(timeout=LIMIT_S)
                status = process.returncode
            except subprocess.TimeoutExpired:
                status = -1
                stop(process)
                out, _ = process.communicate()
        if status not in (0, 1):
            print(Path(folder, "err").read_text()[-1000:], file=sys.stderr)
    finding, first = first_named(out)
    return Verdict(status=status, finding=finding, first=first, seconds=time.monotonic() - began)


def stop(process: subprocess.Popen[str]) -> None:
    """Let the command end its ranks; kill it if it does not."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=20)
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def first_named(out: str) -> tuple[str, str]:
    """The name of the first finding, and the name with which its evidence begins.

    A finding that names something comes before one that does not.
    """
    try:
        findings = json.loads(out).get("findings", ())
    except ValueError:
        return "", ""
    named = [(one["name"], name_in(one.get("evidence", ""))) for one in findings]
    return next((pair for pair in named if pair[1]), named[0] if named else ("", ""))


def name_in(evidence: object) -> str:
    """NAME of evidence that begins ``first: NAME``."""
    text = "\n".join(evidence) if isinstance(evidence, list) else str(evidence)
    if not text.startswith("first: "):
        return ""
    words = text.removeprefix("first: ").split()
    return words[0].rstrip(",;:") if words else ""


def is_right(first: str, allowed: list[str]) -> bool:
    """Whether a name is one of those allowed, or one is the end of the other."""
    if not first:
        return False
    return any(
        fnmatch.fnmatchcase(first, name)
        or fnmatch.fnmatchcase(first, f"*.{name}")
        or name.endswith(f".{first}")
        for name in allowed
    )


def print_bugs(bugs: list[Bug]) -> None:
    """Print a line for each bug, and the totals."""
    print(f"{'bug':62} {'kind':44} found {'finding':28} {'first':36} right    s")
    found = named = specific = specific_named = longest = 0
    accused: dict[tuple[str, int, tuple[str, ...]], bool] = {}
    for bug in bugs:
        case = (bug.program, bug.world, bug.arguments)
        if case not in accused:  # the right program with the same arguments
            text = program_text(bug.program)
            verdict = verify(bug.program, text, world=bug.world, arguments=bug.arguments)
            accused[case] = verdict.status != 0
        verdict = verify(bug.program, bug.text(), world=bug.world, arguments=bug.arguments)
        is_found = verdict.status == 1 and not accused[case]
        is_named = is_found and is_right(verdict.first, bug.first)
        found += is_found
        named += is_named
        specific += bug.first != ["*"]
        specific_named += is_named and bug.first != ["*"]
        longest = max(longest, round(verdict.seconds))
        note = " (the right program is accused)" if accused[case] else ""
        print(
            f"{bug.id:62} {bug.kind:44} {yes(is_found):5} {verdict.finding:28} {verdict.first:36} "
            f"{yes(is_named):5} {verdict.seconds:4.0f}{note}",
            flush=True,
        )
    print(
        f"found {found} of {len(bugs)}, right first {named}, of which in bugs of certain parameters "
        f"{specific_named} of {specific}; longest {longest} s"
    )


def print_right(cases: list[Right]) -> None:
    """Print a line for each right case, and the total."""
    print(f"{'right case':62} accused {'finding':28} {'first':36}    s")
    accused = 0
    for case in cases:
        text = program_text(case.program)
        verdict = verify(case.program, text, world=case.world, arguments=case.arguments)
        is_accused = verdict.status != 0
        accused += is_accused
        print(
            f"{case.id:62} {yes(is_accused):7} {verdict.finding:28} {verdict.first:36} "
            f"{verdict.seconds:4.0f}",
            flush=True,
        )
    print(f"accused {accused} of {len(cases)}")


def yes(value: bool) -> str:
    """A word for a table."""
    return "yes" if value else "no"


def main() -> None:
    """Print the tables that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="NAME", help="cases whose program/name contains NAME")
    parser.add_argument("--right", action="store_true", help="right cases alone")
    parser.add_argument("--more", action="store_true", help="the bugs in reserve alone")
    args = parser.parse_args()
    chosen = args.only or ""
    if not args.right:
        bugs = read_bugs("more_bugs.toml" if args.more else "bugs.toml")
        print_bugs([bug for bug in bugs if chosen in bug.id])
    if not args.more:
        print_right([case for case in read_right() if chosen in case.id])


if __name__ == "__main__":
    main()
