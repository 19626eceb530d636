"""A launcher that runs, with the time of every line that it prints, and what its lines say in the end."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
from dataclasses import dataclass, field

import psutil

from printed_json import read_json
from starting import Running

_WARM = "paceline-warm"
RULE = "── paceline"
_REPORT = re.compile(r'\{"(exit_status|findings)".*')
_PRINTED = re.compile(
    r"(?:error|warning|hint) [A-Z]{3}\d{3} ([a-z0-9-]+): (.*)|\[[A-Z]{3}\d{3} ([a-z0-9-]+)\]"
)


@dataclass
class Line:
    """A line of stderr and when it came."""

    text: str
    time_s: float


@dataclass
class Launched:
    """One launcher.

    Attributes:
        running: Its process.
        host: Name of its host, empty for this one.
        err: What it has printed to stderr so far.
        out: What it has printed to stdout so far.
        started_s: When it was started.
        ready_s: When it had imported torch, which takes longer the more this machine has to do; 0 if that is not seen.
        ended_s: When it had closed its stderr; 0 as long as it has not.
        killed: The test itself has killed it, so it has nothing to say.
    """

    running: Running
    host: str = ""
    err: list[Line] = field(default_factory=list)
    out: list[Line] = field(default_factory=list)
    started_s: float = field(default_factory=time.time)
    ready_s: float = 0.0
    ended_s: float = 0.0
    killed: bool = False

    def __post_init__(self) -> None:
        process = self.running.process
        self._readers = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in ((process.stdout, self.out), (process.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

        # a process that forks this one is what paceline run makes as soon as it has imported torch
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            while not any(child.name() == _WARM for child in process.children()):
                time.sleep(0.05)
            self.ready_s = time.time()

    def _read(self, stream, lines: list[Line]) -> None:
        for text in stream:
            lines.append(Line(text.rstrip("\n"), time.time()))
        if lines is self.err:
            self.ended_s = time.time()

    @property
    def pid(self) -> int:
        return self.running.process.pid

    def signal(self, signum: int) -> None:
        self.running.process.send_signal(signum)
        self.killed |= signum == signal.SIGKILL

    def ended(self) -> bool:
        return self.running.process.poll() is not None

    def finish(self) -> None:
        """Read the last lines of a process that has ended; for those of children that it has left, 1 s."""
        for reader in self._readers:
            reader.join(timeout=1)
        self.ended_s = self.ended_s or time.time()

    @property
    def status(self) -> int | None:
        return self.running.process.poll()

    @property
    def findings(self) -> list[dict]:
        """The findings of ``--json``; of the text where the command was refused before it could print them."""
        for line in reversed(self.out):
            if report := _REPORT.search(
                line.text
            ):  # perhaps behind what a rank printed without a line feed
                return read_json("run", report[0])["findings"]
        return [{"name": name, "what": what} for name, what in self.printed.items()]

    @property
    def printed(self) -> dict[str, str]:
        """The findings that were printed, by name; what they say, where it stands behind the name."""
        matches = [match for line in self.err if (match := _PRINTED.search(line.text))]
        return {match[1] or match[3]: match[2] or "" for match in matches}

    def finding(self, name: str) -> dict | None:
        return next((each for each in self.findings if each["name"] == name), None)

    def told_s(self, name: str) -> float:
        """Return when the first line that carries a finding's name was printed, 0 if none was."""
        return next((line.time_s for line in self.err if name in line.text), 0.0)

    def report(self, name: str) -> list[str]:
        """Return the lines about a finding: below the rule if the run has failed, else those of the warning."""
        texts = [line.text for line in self.err]
        rules = [place for place, text in enumerate(texts) if text.startswith(RULE)]
        if rules and self.status:
            return texts[rules[-1] + 1 :]
        places = [place for place, text in enumerate(texts) if name and name in text]
        if not places:
            return []
        first, last = places[0], places[0] + 1  # at the end it is only named again
        while last < len(texts) and texts[last].removeprefix("paceline:").startswith("  "):
            last += 1
        return texts[first:last]

    def text(self) -> str:
        """Return all that it has printed, for a person who wants to know why a test failed."""
        streams = (("stdout", self.out), ("stderr", self.err))
        said = "\n".join(f"[{name}] {line.text}" for name, lines in streams for line in lines[-60:])
        return f"--- launcher {self.host or 'here'}, status {self.status}\n{said}"
