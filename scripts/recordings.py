"""Records sessions at a terminal of 80 columns, from real runs, as pictures for the documentation.

    python scripts/recordings.py [NAME...]

Each becomes docs/raw/recordings/NAME.svg, and NAME.txt with the same text for those who cannot see
it. The texts are as printed, but for names of this machine: its host, folders, process ids and
ports. Times are as measured. block.svg is the end of the failure alone; report.png is the page of
paceline report about examples/digits.py, taken by chromium if that is installed.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import shutil
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "raw" / "recordings"
PROGRAMS = Path(__file__).parent / "recorded_programs"
BIN = Path(sys.executable).parent
COLUMNS, ROWS = 80, 200
LIMIT_S = 240
HOST = "node-a"
REPORT = "report"
REPORT_COMMANDS = (
    "paceline run --nproc-per-node 2 --run-dir digits digits.py --epochs 60",
    "paceline report digits --output report.html",
)
CHROMIUM = shutil.which("chromium")
PAGE_SIZE = (1200, 1340)

# The colours of a dark terminal, readable on a light page and on a dark one.
THEME = TerminalTheme(
    (22, 27, 34),
    (230, 237, 243),
    [
        *((72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34)),
        *((88, 166, 255), (188, 140, 255), (57, 197, 207), (177, 186, 196)),
    ],
    [
        *((110, 118, 129), (255, 161, 152), (86, 211, 100), (227, 179, 65)),
        *((121, 192, 255), (210, 168, 255), (86, 212, 221), (255, 255, 255)),
    ],
)
# Rich's own fetches a font from the network.
SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" role="img" \
xmlns="http://www.w3.org/2000/svg">
<title>TITLE</title>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; \
font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


@dataclass(frozen=True)
class Session:
    """A session to record.

    Attributes:
        title: What it shows, in a sentence.
        commands: The lines that are typed.
        statuses: Exit status that each must have.
    """

    title: str
    commands: tuple[str, ...]
    statuses: tuple[int, ...]


SESSIONS = {
    "failure": Session(
        "A rank fails: one block names the rank, the line and the cause.",
        ("paceline run --nproc-per-node 2 train.py",),
        (1,),
    ),
    "hang": Session(
        "A collective that only rank 0 reaches: the run says so, and ends.",
        ("paceline run --nproc-per-node 2 --hang-timeout 20 validate.py",),
        (1,),
    ),
    "explain": Session(
        "A log of another launcher: the likely cause comes first.",
        ("paceline explain night.log",),
        (1,),
    ),
    "resume": Session(
        "A run stops at its time limit and resumes on another number of ranks.",
        (
            "paceline run --nproc-per-node 2 --run-dir night --max-time 12 digits.py",
            "paceline run --nproc-per-node 1 --run-dir night digits.py",
        ),
        (75, 0),
    ),
}


def record(session: Session, folder: Path) -> str:
    """Type the commands of a session in a folder; return what the terminal showed."""
    shown = []
    for command, expected in zip(session.commands, session.statuses, strict=True):
        status, output = _at_terminal(command, folder)
        shown.append(f"\x1b[1m$ {command}\x1b[0m\n{output}")
        if status != expected:
            raise SystemExit(f"{command} ended with {status}, not {expected}:\n{output}")
    return "\n".join(shown)


def _at_terminal(command: str, folder: Path) -> tuple[int, str]:
    """Run a command at a terminal of 80 columns; return its status and what it printed."""
    leader, follower = pty.openpty()
    fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environ |= {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
    environ |= {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.Popen(
        [*_on_a_host_of_its_own(), "bash", "-c", command],
        cwd=folder,
        env=environ,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    try:
        output = _read(leader, process)
    finally:
        os.close(leader)
    return process.wait(), output.decode("utf-8", "replace").replace("\r\n", "\n")


def _on_a_host_of_its_own() -> list[str]:
    """Return a command before which a command runs on a host that is called node-a.

    Without root the name is replaced in the text, and lines with it may be wrapped elsewhere.
    """
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return []
    return ["unshare", "--uts", "bash", "-c", f'hostname {HOST} && exec "$@"', "bash"]


def _read(leader: int, process: subprocess.Popen[bytes]) -> bytes:
    output, deadline = b"", time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if select.select([leader], [], [], 0.2)[0]:
            try:
                output += os.read(leader, 65536)
            except OSError:  # the terminal has no other end any more
                return output
        elif process.poll() is not None:
            return output
    process.terminate()
    raise SystemExit(f"not done after {LIMIT_S} s:\n{output.decode('utf-8', 'replace')}")


def neutral(text: str, folder: str, *, host: str) -> str:
    """Return a text without names of this machine.

    Args:
        text: What the terminal showed.
        folder: The folder in which it ran.
        host: Name of this host.
    """
    packages = re.escape(sysconfig.get_paths()["purelib"])
    text = re.sub(rf"{packages}/|{re.escape(str(ROOT))}/src/", "site-packages/", text)
    text = text.replace(folder, "/home/me/project").replace(str(Path.home()), "/home/me")
    text = re.sub(rf"(?<![\w-]){re.escape(host)}(?![\w-])", HOST, text)
    text = re.sub(r"\d{8}-\d{6}-(\w+)-[0-9a-f]{4}", r"20261201-093000-\1-3f2a", text)
    text = re.sub(r"\bpid \d+", "pid 4711", text)
    text = re.sub(r"(127\.0\.0\.1\]?):\d+", r"\1:29500", text)
    return re.sub(r"\[rank(\d)\]:\[W\d+ [\d:.]+ ", r"[rank\1]:[W1201 09:30:07 ", text)


def picture(text: str, *, name: str, title: str) -> str:
    """Return an SVG of a text with the colours of a terminal."""
    console = Console(
        record=True,
        width=COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    for line in Text.from_ansi(text).split():  # as a terminal, which breaks lines between letters
        for part in line.divide(range(COLUMNS, max(COLUMNS, len(line)), COLUMNS)):
            console.print(part, highlight=False)
    form = SVG.replace("TITLE", escape(title))
    svg = console.export_svg(title="", theme=THEME, code_format=form, unique_id=name)
    return re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE)


def plain(text: str) -> str:
    """Return a text without its colours."""
    lines = Text.from_ansi(text).plain.splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n") + "\n"


def block_of(text: str) -> str:
    """Return the block at the end of a run that failed."""
    start = text.rindex("── paceline")
    return text[text.rfind("\n", 0, start) + 1 :]


def write(name: str, text: str, title: str) -> None:
    """Write the picture of a text and its alternative."""
    (FOLDER / f"{name}.svg").write_text(picture(text, name=name, title=title), encoding="utf-8")
    (FOLDER / f"{name}.txt").write_text(plain(text), encoding="utf-8")


def photograph() -> None:
    """Train examples/digits.py, and take the page of its report as a picture."""
    if CHROMIUM is None:
        print("not made: docs/raw/recordings/report.png needs chromium")
        return
    with tempfile.TemporaryDirectory(prefix="recording-", dir="/tmp") as temporary:
        folder, image = Path(temporary), FOLDER / f"{REPORT}.png"
        shutil.copy(ROOT / "examples" / "digits.py", folder)
        for command in REPORT_COMMANDS:
            status, output = _at_terminal(command, folder)
            if status != 0:
                raise SystemExit(f"{command} ended with {status}:\n{output}")
        page = folder / "report.html"
        html = page.read_text(encoding="utf-8").replace(temporary, "/home/me/project")
        page.write_text(html, encoding="utf-8")
        width, height = PAGE_SIZE
        subprocess.run(
            [
                *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
                *(
                    "--hide-scrollbars",
                    "--disable-dev-shm-usage",
                    "--disable-background-networking",
                ),
                *(f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{height}"),
                *("--virtual-time-budget=10000", f"--screenshot={image}", page.as_uri()),
            ],
            check=True,
            timeout=LIMIT_S,
            capture_output=True,
        )
    print(f"docs/raw/recordings/{REPORT}.png", flush=True)


def main(names: Sequence[str]) -> int:
    """Record the sessions of these names, all without one."""
    unknown = set(names) - {*SESSIONS, REPORT}
    if unknown:
        raise SystemExit(f"{__doc__}\nthere is no session {', '.join(sorted(unknown))}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names or (*SESSIONS, REPORT):
        if name == REPORT:
            photograph()
            continue
        session = SESSIONS[name]
        with tempfile.TemporaryDirectory(prefix="recording-", dir="/tmp") as temporary:
            folder = Path(temporary)
            shutil.copytree(PROGRAMS, folder, dirs_exist_ok=True)
            text = neutral(record(session, folder), temporary, host=socket.gethostname())
            write(name, text, session.title)
            if name == "failure":
                write("block", block_of(text), session.title)
        print(f"docs/raw/recordings/{name}.svg", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
