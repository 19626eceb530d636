"""Runs what only GPUs can show, and writes one file to send: gpu-report.md.

    python scripts/gpu_report.py [--out gpu-report.md] [--only PART,...] [--list]

Some twenty minutes on two GPUs, at most three quarters of an hour. A part that fails or takes too long is reported, and the next one
runs; a part that needs more GPUs than there are is left out, and says so. The file holds versions,
names of GPUs, what each part came to, and its output. Names of users and hosts, addresses and
secrets, people and addresses are replaced. docs/reference/gpu-readiness.md says what
the parts stand for.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.diagnose.explain.redaction import Redactor, known

ROOT = Path(__file__).resolve().parents[1]
MOST_CHARACTERS = 20_000  # of the output of a part: its beginning and its end
DOCTOR, NETWORK, LAUNCH, OVERHEAD = "doctor", "network", "launch", "overhead"

# What torch finds, asked of a process of its own: this one uses no GPU.
ASK = """
import json, platform, torch
from dataclasses import asdict
from paceline.machine import software
found = torch.accelerator.current_accelerator()
number = torch.accelerator.device_count() if found is not None else 0
module = torch.get_device_module(found) if number else None
print(json.dumps({
    "kind": found.type if number else "none",
    "names": [module.get_device_name(place) for place in range(number)],
    "versions": {**asdict(software.loaded()), "hip": torch.version.hip or "",
                 "system": f"{platform.system()} {platform.release()} {platform.machine()}"},
}))
"""


@dataclass(frozen=True)
class Part:
    """One command, and what it shows."""

    name: str
    shows: str
    command: tuple[str, ...]  # with {root}, {folder}, {gpus}; programs are those of this Python
    limit_s: int
    num_gpus: int = 1
    only_cuda: bool = False
    result: str = r"\S.*"  # pattern of the lines that are its result; of them the last ones count
    num_lines: int = 0  # of the result; 0 for one that fits into the table


PYTEST = ("python", "-m", "pytest", "-p", "no:cacheprovider", "-c", "{root}/pyproject.toml")
FAULTS = "{root}/tests/gpu/test_faults.py"
COUNTS = r"(?=.*\bin [\d.]+s).*\b(?:passed|failed|skipped|error).*"
FIVE_ROUNDS = ("--rounds", "5", "--only", "raw,again,probe,session")
ALL_GPUS = ("--nproc-per-node", "{gpus}")
SMALL = ("{root}/examples/cifar10.py", "--small", "--precision", "bf16-mixed")
PARTS = (
    Part(
        DOCTOR,
        "the machine; NVML; copies between GPUs",
        ("paceline", "doctor"),
        120,
        result=r"(?:GPUs|links|peer|driver|software) .*|(?:hint|warning|error) .*",
        num_lines=20,
    ),
    Part(
        "tests",
        "the tests that need a GPU, with the CIFAR-10 example",
        (*PYTEST, "-m", "gpu", "{root}/tests/gpu", "--ignore", FAULTS),
        600,
        result=COUNTS,
    ),
    Part(
        "faults",
        "loss of a rank, hang, a collective left out, out of memory",
        (*PYTEST, FAULTS),
        300,
        num_gpus=2,
        result=COUNTS,
    ),
    Part(
        LAUNCH,
        "start-up and restart beside torchrun's",
        ("python", "{root}/benchmarks/launch.py", "--rounds", "3"),
        300,
        num_lines=12,
    ),
    Part(
        OVERHEAD,
        "a step of the probe and of Session beside a plain loop",
        ("python", "{root}/benchmarks/overhead.py", "--gpu", *FIVE_ROUNDS),
        240,
        only_cuda=True,
        num_lines=8,
    ),
    Part(
        NETWORK,
        "all-reduce between GPUs",
        ("paceline", "bench", "network", "--nproc-per-node", "2"),
        120,
        num_gpus=2,
        num_lines=14,
    ),
    Part(
        "cifar",
        "CIFAR-10 of the made-up images on all GPUs, in bfloat16, with synchronised batch norm",
        ("paceline", "run", *ALL_GPUS, "--run-dir", "{folder}/cifar", *SMALL, "--sync-batchnorm"),
        180,
        result=r"epoch .*|.*same result.*",
        num_lines=8,
    ),
    Part(
        "epoch",
        "an epoch of ResNet-18 beside the usual recipe",
        ("python", "{root}/benchmarks/gpu_cifar.py", "--images", "20000", "--epochs", "2"),
        300,
        only_cuda=True,
        num_lines=10,
    ),
    Part(
        "scaling",
        "one rank beside two",
        ("paceline", "bench", "--world", "1,2", "--run-dir", "{folder}/bench", *SMALL),
        300,
        num_gpus=2,
        num_lines=12,
    ),
    Part(
        "verify",
        "the same result on one GPU and two",
        ("paceline", "verify", "--world", "1,2", "{root}/examples/digits.py"),
        180,
        num_gpus=2,
        num_lines=6,
    ),
)


@dataclass(frozen=True)
class Machine:
    """What torch finds here."""

    kind: str = "none"
    names: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Came:
    """What a part came to."""

    part: Part
    state: str  # ok, failed (...), or why it did not run
    seconds: float = 0.0
    output: str = ""

    @property
    def result(self) -> str:
        """The lines of the output that matter."""
        lines = re.findall(rf"^(?:{self.part.result})$", self.output, re.M)
        return "\n".join(lines[-max(1, self.part.num_lines) :])

    @property
    def short(self) -> str:
        """What stands in the table: the state, and a result of one line."""
        fits = self.result and not self.part.num_lines
        return f"{self.state}: {self.result}" if fits else self.state


def look() -> Machine:
    """Return what torch finds on this machine."""
    ended = subprocess.run(
        [sys.executable, "-c", ASK], capture_output=True, text=True, timeout=120, check=False
    )
    if ended.returncode:
        return Machine(versions={"error": ended.stderr.strip().rpartition("\n")[2]})
    found = json.loads(ended.stdout.splitlines()[-1])
    return Machine(found["kind"], tuple(found["names"]), found["versions"])


def missing(part: Part, machine: Machine) -> str:
    """Return why a part cannot run on a machine; empty if it can."""
    num_gpus = len(machine.names)
    if not num_gpus:
        return "no GPU"
    if num_gpus < part.num_gpus:
        return f"needs {part.num_gpus} GPUs, there is {num_gpus}"
    if part.only_cuda and machine.kind != "cuda":
        return f"needs CUDA, this is {machine.kind}"
    return ""


def run(part: Part, folder: Path, num_gpus: int) -> Came:
    """Run a part to its end or its limit, and end all that it has started."""
    programs = Path(sys.executable).parent
    values = {"root": ROOT, "folder": folder, "gpus": num_gpus}
    first, *rest = (word.format(**values) for word in part.command)
    program = sys.executable if first == "python" else str(programs / first)
    begin = time.monotonic()
    with (folder / f"{part.name}.out").open("w+", encoding="utf-8", errors="replace") as file:
        try:
            running = subprocess.Popen(
                [program, *rest],
                cwd=folder,
                env={**os.environ, "NO_COLOR": "1"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return Came(part, f"failed ({error.strerror})")
        state = waited(running, part.limit_s)
        file.seek(0)
        return Came(part, state, time.monotonic() - begin, file.read())


def waited(running: subprocess.Popen[bytes], limit_s: float) -> str:
    """Wait for a process and return what it came to; end its session if it takes too long."""
    try:
        status = running.wait(limit_s)
    except subprocess.TimeoutExpired:
        return f"failed (no end within {limit_s:g} s)"
    finally:  # also where this script is interrupted
        end(running)
    return "ok" if status == 0 else f"failed (status {status})"


def end(running: subprocess.Popen[bytes]) -> None:
    """End a process that still runs, and the processes of its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if running.poll() is not None:
            return
        os.killpg(running.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(20)


def report(machine: Machine, parts: Sequence[Came], redactor: Redactor) -> str:
    """Return the file to send: figures first, whole outputs at its end. Names are replaced."""
    redactor.learn(came.output for came in parts)
    text = "\n".join(lines(machine, parts)) + "\n"
    text = text.replace(str(ROOT), "<checkout>")
    text = re.sub(r"\b(GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", r"\1-<id>", text)
    return redactor.redact(text)


def lines(machine: Machine, parts: Sequence[Came]) -> Iterator[str]:
    """Yield the lines of the file."""
    yield "# paceline on GPUs"
    yield ""
    names = ", ".join(machine.names) or "no GPU"
    yield f"{len(machine.names)} x {machine.kind}: {names}"
    yield ""
    yield from (f"- {name}: {version or '-'}" for name, version in machine.versions.items())
    yield ""
    yield "| part | shows | came to | seconds |"
    yield "| --- | --- | --- | --- |"
    for came in parts:
        seconds = f"{came.seconds:.0f}" if came.seconds else ""
        yield f"| {came.part.name} | {came.part.shows} | {came.short} | {seconds} |"
    ran = [came for came in parts if came.output]
    for came in ran:
        if came.part.num_lines:
            yield from section(f"{came.part.name}: {came.state}", came.result)
    for came in ran:
        yield from section(f"Output of {came.part.name}", shortened(came.output))


def section(title: str, text: str) -> Iterator[str]:
    """Yield a heading and a text as it is, in a fence that it does not hold."""
    fence = "`" * max(4, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    yield from ("", f"## {title}", "", f"{fence}text", text.rstrip("\n"), fence)


def shortened(text: str) -> str:
    """Return a text without its middle if it is too long."""
    if len(text) <= MOST_CHARACTERS:
        return text
    half = MOST_CHARACTERS // 2
    head, tail = text[:half], text[-half:]
    return f"{head}\n[... {len(text) - 2 * half:,} characters are left out ...]\n{tail}"


def main(out: Path, only: Sequence[str]) -> int:
    """Run the parts and write the file; the status is 1 if a part failed."""
    machine = look()
    print(f"{len(machine.names)} GPUs: {', '.join(machine.names) or 'no GPU'}", flush=True)
    parts: list[Came] = []
    with tempfile.TemporaryDirectory() as folder:
        for part in PARTS:
            if only and part.name not in only:
                continue
            reason = missing(part, machine)
            came = Came(part, reason) if reason else run(part, Path(folder), len(machine.names))
            parts.append(came)
            print(f"{part.name:10} {came.seconds:5.0f} s  {came.state}", flush=True)
            # After each part: an interrupted report holds what there was.
            out.write_text(report(machine, parts, Redactor(known())), encoding="utf-8")
    print(f"Read {out} before you send it: what no rule recognizes is still in it.")
    return 1 if any(came.state.startswith("failed") for came in parts) else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "gpu-report.md")
    parser.add_argument("--only", default="", help="names of parts, with commas")
    parser.add_argument("--list", action="store_true", help="print the parts and end")
    asked = parser.parse_args()
    if asked.list:
        for each in PARTS:
            print(f"{each.name:10} {each.num_gpus} GPU  {each.limit_s:4} s  {each.shows}")
        sys.exit(0)
    sys.exit(main(asked.out, [name for name in asked.only.split(",") if name]))
