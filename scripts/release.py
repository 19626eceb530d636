"""Builds the release, and tries it in fresh environments.

    python scripts/release.py [--torch here|everywhere|nowhere] [--output FOLDER]

The sdist and the wheel are built into dist/, and the wheel must have exactly the files of
src/paceline and of examples/. It is installed into a new environment of each Python from 3.10 to 3.13 that this
machine has. There the commands that need no torch are run, and with torch the program of the README
on two ranks: by default in the Python that runs this script. Exits with 1 if something failed; what
could not be run is listed and is no failure.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "paceline"
EXAMPLES = ROOT / "examples"  # paceline new reads them
MINORS = (10, 11, 12, 13)
TORCH = "torch==2.13.0"  # as the tests
_LIMIT_S = 900
_NO_WHEEL = "No matching distribution found"
JOB = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\npython train.py\n"


@dataclass(frozen=True)
class Trial:
    """What was tried in one environment.

    Attributes:
        python: Version of Python.
        what: What was tried.
        outcome: ``"ok"``, ``"not run: ..."`` or ``"failed: ..."``.
    """

    python: str
    what: str
    outcome: str


def version() -> str:
    """Return the version, from the one place where it is written."""
    text = (PACKAGE / "version.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if match is None:
        raise SystemExit("src/paceline/version.py has no line __version__ = ...")
    return match[1]


def build(output: Path, *, isolated: bool = True) -> Path:
    """Build the sdist and, from it, the wheel; return the wheel."""
    for old in (*output.glob("paceline-*.whl"), *output.glob("paceline-*.tar.gz")):
        old.unlink()  # and no more: the folder may be one that holds other files
    options = [] if isolated else ["--no-isolation"]
    words = [sys.executable, "-m", "build", "--outdir", str(output), *options, str(ROOT)]
    subprocess.run(words, check=True, timeout=_LIMIT_S, stdout=sys.stderr)
    (wheel,) = output.glob("*.whl")
    return wheel


def misfits(wheel: Path) -> list[str]:
    """Return what is wrong with the files of a wheel, a line each."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    code = {name for name in names if name.startswith("paceline/")}
    wanted = set(sources())
    others = {name for name in names - code if ".dist-info/" not in name}
    return [
        *(f"is not in the wheel: {name}" for name in sorted(wanted - code)),
        *(f"does not belong in the wheel: {name}" for name in sorted((code - wanted) | others)),
    ]


def sources() -> Iterator[str]:
    """Yield the files that belong in the wheel, by their names in it."""
    for folder, name in ((PACKAGE, "paceline"), (EXAMPLES, "paceline/examples")):
        for path in folder.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"{name}/{path.relative_to(folder).as_posix()}"


def interpreters() -> dict[int, Path]:
    """Return a Python of each minor version that this machine has."""
    found = {}
    for minor in MINORS:
        places = [
            *sorted((Path.home() / ".pyenv" / "versions").glob(f"3.{minor}.*/bin/python")),
            *(Path(path) for path in [shutil.which(f"python3.{minor}")] if path),
            *([Path(sys.executable)] if sys.version_info[:2] == (3, minor) else []),
        ]
        if places:
            found[minor] = places[0]
    return found


def readme_program() -> tuple[str, str]:
    """Return the name and the text of the README's program."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    match = re.search(r"^```python\n(# file: (\S+)\n.*?)^```", readme, re.MULTILINE | re.DOTALL)
    if match is None:
        raise SystemExit("README.md has no Python block that starts with # file: NAME")
    return match[2], match[1]


def try_in(python: Path, wheel: Path, *, with_torch: bool, name: str) -> Iterator[Trial]:
    """Install a wheel into a fresh environment and try it there."""
    with tempfile.TemporaryDirectory(prefix="paceline-release-") as temporary:
        folder = Path(temporary)
        try:
            _run([str(python), "-m", "venv", "environment"], folder)
            binaries = folder / "environment" / "bin"
            _pip(binaries, folder, str(wheel))
            _try_without_torch(binaries, folder)
        except _FailedError as error:
            yield Trial(name, "without torch", f"failed: {error}")
            return
        yield Trial(name, "without torch", "ok")
        yield Trial(name, "program of the README", _with_torch(binaries, folder, with_torch))


class _FailedError(Exception):
    """A command that ended otherwise than it should."""


def _try_without_torch(binaries: Path, folder: Path) -> None:
    paceline = str(binaries / "paceline")
    shown = _run([paceline, "--version"], folder)
    if shown != f"paceline, version {version()}\n":
        raise _FailedError(f"--version printed {shown!r}")
    (folder / "job.sbatch").write_text(JOB, encoding="utf-8")
    _run([paceline, "doctor", "--json"], folder, statuses=(0, 1))
    _run([paceline, "explain", "NET001"], folder)
    linted = _run([paceline, "lint", "job.sbatch"], folder, statuses=(1,))
    if "missing-srun" not in linted:
        raise _FailedError(f"lint found something else: {linted}")
    _run([paceline, "completion", "bash"], folder)


def _with_torch(binaries: Path, folder: Path, wanted: bool) -> str:
    if not wanted:
        return "not run: torch was not asked for"
    try:
        _pip(binaries, folder, TORCH, "numpy")
    except _FailedError as error:
        if _NO_WHEEL in str(error):
            return f"not run: pip finds no {TORCH} for this Python"
        return f"failed: {error}"
    name, text = readme_program()
    (folder / name).write_text(text, encoding="utf-8")
    try:
        _run([str(binaries / "paceline"), "run", "--nproc-per-node", "2", name], folder)
    except _FailedError as error:
        return f"failed: {error}"
    return "ok"


def _pip(binaries: Path, folder: Path, *packages: str) -> None:
    words = [str(binaries / "python"), "-m", "pip", "install", "--quiet"]
    _run([*words, "--disable-pip-version-check", *packages], folder)


def _run(words: Sequence[str], folder: Path, *, statuses: Sequence[int] = (0,)) -> str:
    ended = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    if ended.returncode not in statuses:
        said = "\n".join((ended.stdout + ended.stderr).splitlines()[-12:])
        raise _FailedError(f"{' '.join(words)} ended with {ended.returncode}:\n{said}")
    return ended.stdout


def wants_torch(choice: str, minor: int) -> bool:
    """Return whether torch is tried in a Python 3.x."""
    return choice == "everywhere" or (choice == "here" and sys.version_info[1] == minor)


def remarks() -> Iterator[str]:
    """Yield what a release needs, and the tree does not have yet."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if f"## [{version()}]" not in changelog:
        yield f"CHANGELOG.md has no section [{version()}]: give Unreleased this name and a date"


def main(words: Sequence[str] | None = None) -> int:
    """Build, check and try the release."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--torch", choices=("here", "everywhere", "nowhere"), default="here")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    options = parser.parse_args(words)
    wheel = build(options.output)
    problems = misfits(wheel)
    found = interpreters()
    for minor in MINORS:
        if minor not in found:
            print(f"Python 3.{minor}: not run: this machine has none")
            continue
        wanted = wants_torch(options.torch, minor)
        for trial in try_in(found[minor], wheel, with_torch=wanted, name=f"3.{minor}"):
            print(f"Python {trial.python}, {trial.what}: {trial.outcome}", flush=True)
            if trial.outcome.startswith("failed"):
                problems.append(f"Python {trial.python}, {trial.what}")
    for line in [*problems, *remarks()]:
        print(line)
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
