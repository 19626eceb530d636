"""Where a fault is played: scripts with the fault in them, launchers on one or more hosts, and what they must say.

A fault is one decorated function. Its body breaks something, the decorator says what is expected:

    @fault("SIGKILL of one rank", finding="rank-died-signal", names=("rank 1", "SIGKILL"))
    def test_a_killed_rank(stage):
        stage.script()
        stage.launch()
        pid = stage.up(1)
        stage.broken()
        os.kill(pid, signal.SIGKILL)

The same functions are played under torchrun by benchmarks/faults.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from faults import hosts as networks
from faults.hosts import Host, apart
from faults.launched import Launched, Line
from places import filled
from starting import BIN, Command, commands

SCRIPTS = Path(__file__).parent / "scripts"
RESULTS = Path(
    os.environ.get("PACELINE_FAULT_RESULTS", Path(__file__).parents[2] / ".cache" / "faults.jsonl")
)
FRAMEWORKS = ("raw", "fabric", "lightning", "accelerate")
MOST_LINES = 15
PORT = 29500  # every host has its own
START_S = 90  # so long may a script take to come to its fault, where much else runs
CATALOGUE: list[Fault] = []


@dataclass(frozen=True)
class Fault:
    """A fault and what is to be said about it. What is given as a mapping is given for each host.

    Attributes:
        title: As the table calls it.
        play: Breaks something.
        finding: Name of the finding; empty where nothing may be found.
        names: Patterns that the report must contain: who, where, why. They also judge torchrun's text.
        status: Exit status of the launchers.
        limit_s: Within this time after it could be known, it must be told.
        num_hosts: Hosts that it needs; with 1 it is played without a network.
        frameworks: Scripts that it is played in.
        options: Of paceline run, left out under torchrun.
        alike: All hosts must tell the same.
    """

    title: str
    play: Callable[[Stage], None]
    finding: str | Mapping[int, str]
    names: Sequence[str] | Mapping[int, Sequence[str]] = ()
    status: int | Mapping[int, int] = 1
    limit_s: float = 10
    num_hosts: int = 1
    frameworks: Sequence[str] = ("raw",)
    options: Sequence[str] = ()
    alike: bool = True

    def of(self, what: str, host: int):
        """Return what is expected on one host."""
        value = getattr(self, what)
        return value.get(host) if isinstance(value, Mapping) else value


def fault(title: str, *, mounts: bool = False, timeout_s: float = 0, **expected):
    """Make a test of a function that breaks something, and put it into the catalogue.

    Args:
        title: As the table calls the fault.
        mounts: It mounts something, which needs root.
        timeout_s: Of the test.
        expected: Further fields of ``Fault``.
    """

    def made(play):
        this = Fault(title, play, **expected)
        CATALOGUE.append(this)

        @pytest.mark.parametrize("framework", this.frameworks)
        @pytest.mark.timeout(timeout_s or 2 * START_S + this.limit_s)
        def test(stage, framework):
            stage.set_up(this, framework)
            play(stage)
            stage.check()

        needs = pytest.mark.namespaces if mounts or this.num_hosts > 1 else pytest.mark.slow
        test.__doc__, test.fault = play.__doc__, this
        return needs(test)

    return made


@dataclass
class Stage:
    """One play of one fault.

    Attributes:
        command: Starts commands and knows what is left of them.
        program: ``paceline`` or ``torchrun``.
        hosts: The hosts, none where the fault needs no network.
        launched: The launchers that were started.
    """

    command: Command
    exits: ExitStack
    program: str = "paceline"
    hosts: list[Host] = field(default_factory=list)
    launched: list[Launched] = field(default_factory=list)
    _broken_s: float = 0.0

    def set_up(self, this: Fault, framework: str) -> None:
        self.fault, self.framework = this, framework
        if this.num_hosts > 1:
            self.hosts = self.exits.enter_context(networks.hosts(this.num_hosts))

    @property
    def folder(self) -> Path:
        return self.command.folder

    # What a fault is made of

    def script(
        self,
        *,
        epochs: int = 10**6,
        without: Sequence[str] = (),
        into: str = "train.py",
        **pieces: str,
    ) -> None:
        """Write the training script of the framework, with pieces of code at its marked places.

        Args:
            epochs: How long it trains; a fault that ends the run leaves it at for ever.
            without: Lines to leave out.
            into: Name of the file.
            pieces: For each place (settings, sample, start, model, data, step, loss, epoch, end) what goes there.
        """
        pieces = {place: textwrap.dedent(piece) for place, piece in pieces.items()}
        pieces["settings"] = f"epochs = {epochs}\n{pieces.get('settings', '')}"
        if epochs > 100:  # two ranks that never wait would take this machine
            pieces["step"] = f"time.sleep(0.005)\n{pieces.get('step', '')}"
        text = (SCRIPTS / f"{self.framework}_train.py").read_text()
        self.write(into, filled(text, pieces, without=without))

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def launch(self, *words, **each) -> list[Launched]:
        """Start the launcher on every host, or two ranks here where there are no hosts."""
        if not self.hosts:
            return [self.start(None, *words, **each)]
        return [self.start(number, *words, **each) for number in range(len(self.hosts))]

    def start(
        self,
        number: int | None,
        *words,
        script: str = "train.py",
        before: str = "",
        env: dict[str, str] | None = None,
        cwd: str = "",
        head: str = "",
        **options,
    ) -> Launched:
        """Start a launcher.

        Args:
            number: Of the host; None for this machine without a network.
            words: Words behind the script.
            script: The script.
            before: A shell line that runs before it, where its mounts are seen by this launcher only.
            env: Variables of this launcher.
            cwd: Its folder, relative to the stage's.
            head: The head's address or name as it is given here.
            options: Options of both launchers, with underscores; those of several hosts have defaults, which None takes
                away.
        """
        where = {"nproc_per_node": 1 if self.hosts else 2}
        if number is not None:
            where |= {
                "nnodes": len(self.hosts),
                "node_rank": number,
                "master_addr": head or self.hosts[0].address,
            }
            where |= {"master_port": PORT}
        typed = [
            word for name, value in (where | options).items() for word in typed_as(name, value)
        ]
        ours = self.program == "paceline"
        launcher = [BIN / self.program, *(["run", "--json", *self.fault.options] if ours else [])]
        alone = (
            ["--standalone"] if not ours and number is None and "master_port" not in options else []
        )
        command = [str(word) for word in (*launcher, *alone, *typed, script, *words)]
        if number is not None:
            command = self.hosts[number].inside(command, before)
        elif before:
            command = apart(command, before)
        first, *rest = command
        running = self.command.start(
            *rest, program=shutil.which(first), env=env, cwd=self.folder / cwd
        )
        self.launched.append(
            Launched(running, self.hosts[number].name if number is not None else "")
        )
        return self.launched[-1]

    def up(self, rank: int) -> int:
        """Wait until a rank has trained a few steps; return its pid."""
        return int(self.wait_for(f"up-{rank}"))

    def all_up(self) -> None:
        for rank in range(len(self.hosts) or 2):
            self.up(rank)

    def wait_for(self, name: str) -> str:
        """Wait until a file has been written whole, or a launcher has given up."""
        path, until = self.folder / name, time.monotonic() + START_S
        while time.monotonic() < until and not all(launched.ended() for launched in self.launched):
            if path.exists() and path.read_text().endswith("\n"):
                return path.read_text()
            time.sleep(0.02)
        raise AssertionError(f"{name} was not written\n{self.text()}")

    def wait_for_line(self, launched: Launched, words: str) -> Line:
        """Wait until a launcher has printed a line with these words on stderr."""
        until = time.monotonic() + START_S
        while time.monotonic() < until and not launched.ended():
            if found := next((line for line in launched.err if words in line.text), None):
                return found
            time.sleep(0.02)
        raise AssertionError(f"{words} was not printed\n{self.text()}")

    def broken(self) -> None:
        """Say that the fault can be known from now on; a script says it with ``broke()``."""
        self._broken_s = time.time()

    # What comes of it

    def moment_s(self) -> float:
        """Return since when the fault can be known: when it was said, else since the last launcher was ready."""
        said = [float(path.read_text() or "inf") for path in self.folder.glob("broke-*")]
        ready = max(launched.ready_s or launched.started_s for launched in self.launched)
        return self._broken_s or min(said, default=ready)

    def _known(self) -> bool:
        """Whether the moment is sure; launchers may still start, or their script come to it."""
        return bool(self._broken_s or any(self.folder.glob("broke-*")))

    def wait(self, limit_s: float, *, grace_s: float = 8.0) -> bool:
        """Wait until all launchers have ended, at most until ``limit_s`` and a little after the fault can be known."""
        while not all(launched.ended() for launched in self.launched):
            if time.time() > self.moment_s() + max(
                START_S * (not self._known()), limit_s + grace_s
            ):
                return False
            time.sleep(0.05)
        for launched in self.launched:
            launched.finish()
        return True

    def check(self) -> None:
        """Wait for the end, record what was measured, and compare it with what the fault expects."""
        this, wrong = self.fault, []
        if not self.wait(this.limit_s):
            wrong.append("a launcher has not ended")
            for launched in self.launched:
                launched.finish()
        for number, launched in enumerate(self.launched):
            if not launched.killed:
                wrong += [
                    f"{launched.host or 'here'}: {line}" for line in self._compare(number, launched)
                ]
        told = [launched for launched in self.launched if not launched.killed]
        if (
            this.alike
            and isinstance(this.finding, str)
            and len({self._said(each) for each in told}) > 1
        ):
            wrong.append(f"the hosts do not tell the same: {[self._said(each) for each in told]}")
        if left := self.command.survivors(within_s=2):
            wrong.append(f"left behind: {left}")
        self._record(wrong)
        assert not wrong, "\n".join([*wrong, self.text()])

    def _said(self, launched: Launched) -> str:
        return json.dumps(launched.finding(str(self.fault.finding)), sort_keys=True)

    def _compare(self, number: int, launched: Launched) -> Iterator[str]:
        this = self.fault
        name, status = this.of("finding", number), this.of("status", number)
        if launched.status != status:
            yield f"exit status {launched.status}, not {status}"
        if not name:
            if found := [each["name"] for each in launched.findings] or list(launched.printed):
                yield f"found {found}, where nothing is to be found"
            return
        if launched.finding(name) is None:
            yield f"{name} was not found, but {[each['name'] for each in launched.findings]}"
        report = launched.report(name)
        if len(report) > MOST_LINES:
            yield f"the report has {len(report)} lines"
        text = "\n".join(report)
        for pattern in this.of("names", number) or ():
            if not re.search(pattern, text, re.I):
                yield f"the report does not name {pattern!r}"
        seconds = self.told_after_s(launched, name)
        if seconds > this.limit_s:
            yield f"told after {seconds:.1f} s, not {this.limit_s:g} s"

    def told_after_s(self, launched: Launched, name: str) -> float:
        return max(0.0, (launched.told_s(name) or launched.ended_s) - self.moment_s())

    def _record(self, wrong: Sequence[str]) -> None:
        """Add a line to the results, which scripts/faults_table.py turns into a page."""
        this = self.fault
        told = [(number, each) for number, each in enumerate(self.launched) if not each.killed]
        names = [(this.of("finding", number), launched) for number, launched in told]
        found = [
            (launched, finding)
            for name, launched in names
            if name and (finding := launched.finding(name))
        ]
        line = {
            "fault": this.title,
            "framework": self.framework,
            "hosts": this.num_hosts,
            "found": list(dict.fromkeys(finding["name"] for _, finding in found)),
            "what": list(dict.fromkeys(finding["what"] for _, finding in found)),
            "seconds": max(
                (self.told_after_s(launched, finding["name"]) for launched, finding in found),
                default=None,
            ),
            "limit_s": this.limit_s,
            "status": list(dict.fromkeys(launched.status for _, launched in told)),
            "lines": max(
                (len(launched.report(finding["name"])) for launched, finding in found), default=0
            ),
            "wrong": list(wrong),
            "at": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        with RESULTS.open("a") as file:  # one write: tests of several processes add to it
            file.write(json.dumps(line) + "\n")

    def text(self) -> str:
        files = sorted(path.name for path in self.folder.glob("*.py"))
        scripts = "\n".join(
            f"--- {name}\n"
            + "\n".join(
                f"{place:3} {line}"
                for place, line in enumerate((self.folder / name).read_text().splitlines(), 1)
            )
            for name in files
        )
        return "\n".join(
            [
                *(launched.text() for launched in self.launched),
                scripts if len(scripts) < 6000 else "",
            ]
        )


def typed_as(name: str, value: object) -> tuple[str, ...]:
    """Return an option as it is typed."""
    return () if value is None else (f"--{name.replace('_', '-')}", str(value))


@contextmanager
def stage(folder: Path, program: str = "paceline") -> Iterator[Stage]:
    """Set up a stage in a folder; nothing is left of it afterwards."""
    with ExitStack() as exits:
        # first in, last out: hosts are removed when their processes have gone
        network = exits.enter_context(ExitStack())
        command = exits.enter_context(commands(folder))
        yield Stage(command, network, program)
