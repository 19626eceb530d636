"""Create the folder of a new project and write its files.

A further kind is one more entry of ``KINDS``. Its script must name itself ``examples/SCRIPT`` in
its docstring, promise "At least N %" there, and print "accuracy N %".
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline import version
from paceline.errors import Finding, SetupError, closest, option_invalid
from paceline.rundir.files import write_whole
from paceline.text.quoting import printable
from paceline.text.wording import few, shorten


@dataclass(frozen=True)
class ProjectKind:
    """One kind of project."""

    script: str  # file of ``examples/`` that becomes ``train.py``
    trains_with: str  # what the script trains with, as it is called in a sentence
    packages: tuple[str, ...]  # distributions that it imports besides paceline and torch
    # further files of ``examples/`` that the script imports; they keep their names
    parts: tuple[str, ...] = ()


_DIGITS = "scikit-learn"

KINDS: Mapping[str, ProjectKind] = {
    "session": ProjectKind("digits.py", "paceline's Session", (_DIGITS,)),
    "trainer": ProjectKind("digits_trainer.py", "paceline's Trainer", (_DIGITS,)),
    "ddp": ProjectKind("digits_ddp.py", "PyTorch's DistributedDataParallel", (_DIGITS,)),
    "fabric": ProjectKind("digits_fabric.py", "Lightning Fabric", ("lightning", _DIGITS)),
    "lightning": ProjectKind("digits_lightning.py", "Lightning's Trainer", ("lightning", _DIGITS)),
    "accelerate": ProjectKind(
        "digits_accelerate.py", "Hugging Face Accelerate", ("accelerate", _DIGITS)
    ),
    "transformers": ProjectKind(
        "text_transformers.py", "the Trainer of transformers", ("transformers", "accelerate")
    ),
}


def promised_percent(script: str) -> int:
    """Return the accuracy that an example promises in its docstring, in percent.

    Raises ValueError if the docstring promises none.
    """
    promise = re.search(r"^At least (\d+) %", script, re.MULTILINE)
    if promise is None:
        raise ValueError("the example promises no accuracy")
    return int(promise[1])


SCRIPT, TEST, REQUIREMENTS = "train.py", "test_train.py", "requirements.txt"
README, IGNORED, PROFILE = "README.md", ".gitignore", ".paceline/profiles/cluster.toml"

_README = """\
# {name}

`train.py` trains with {trains_with}. Replace its data and its model by your own.

```bash
python -m pip install -r requirements.txt
python train.py                              # one process
paceline run --nproc-per-node 2 train.py     # two ranks; without the option one per GPU
python -m pytest                             # trains on two ranks, on CPUs
paceline lint train.py                       # looks for mistakes
```

On a Slurm cluster, after filling in `{profile}`:

```bash
paceline submit --profile cluster --nodes 2 train.py
paceline jobs
```
"""

_TEST = '''\
"""The training runs on two ranks, and is as accurate as train.py promises. Takes a minute."""

import os
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("train.py")
LEAST_PERCENT = {percent}


def test_two_ranks_train(tmp_path):
    command = [sys.executable, "-m", "paceline", "run", "--nproc-per-node", "2", SCRIPT]
    on_cpus = {{**os.environ, "CUDA_VISIBLE_DEVICES": ""}}  # runs on any machine
    ended = subprocess.run(
        command, cwd=tmp_path, env=on_cpus, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    accuracies = re.findall(r"accuracy (\\S+) %", ended.stdout)
    assert float(accuracies[-1]) >= LEAST_PERCENT
'''

_IGNORED = """\
__pycache__/
.venv/
lightning_logs/
paceline-runs/
trainer_output/
"""

_PROFILE = """\
# What your cluster asks for: paceline submit --profile cluster train.py
# An option on the command line counts more. What the job would be: paceline submit --dry-run

[slurm]
time = "1:00:00"
# partition = "gpu"
# account = "physics"
# gpus-per-node = 4
# cpus-per-gpu = 8
# mem = "64G"

[setup]
# modules = ["cuda/12.4"]
# lines = ["source .venv/bin/activate"]

[environment]
# OMP_NUM_THREADS = "4"
"""


def files(
    kind: ProjectKind,  # what kind of project it is
    sources: Mapping[str, str],  # texts of the kind's script and parts, by the names of their files
    *,
    name: str,
    requirements: Sequence[str],  # lines of ``requirements.txt``
) -> dict[str, str]:
    """Return the texts of a project's files, by their paths in its folder."""
    script = sources[kind.script]
    readme = _README.format(name=name, trains_with=kind.trains_with, profile=PROFILE)
    return {
        SCRIPT: script.replace(f"examples/{kind.script}", SCRIPT),
        **{part: sources[part] for part in kind.parts},
        TEST: _TEST.format(percent=promised_percent(script)),
        REQUIREMENTS: "".join(f"{line}\n" for line in requirements),
        README: readme,
        PROFILE: _PROFILE,
        IGNORED: _IGNORED,
    }


_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
# What a new repository has before its first file.
_ALLOWED = {".git"}
_NEW_NAME = "my-training"


def create(target: str, kind_name: str) -> list[str]:
    """Write a project into a folder that is missing or empty; return the paths of its files."""
    kind = _kind(kind_name)
    folder = Path(target).absolute()
    name = folder.resolve().name if target else ""
    _check_name(name, target)
    try:
        _check_empty(folder, target)
        sources = {file: _example(file) for file in (kind.script, *kind.parts)}
        texts = files(kind, sources, name=name, requirements=_requirements(kind.packages))
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            write_whole(folder / path, text)
    except OSError as error:
        raise SetupError(_not_written(error, folder)) from None
    return list(texts)


def _kind(name: str) -> ProjectKind:
    if name in KINDS:
        return KINDS[name]
    near = closest(name.lower(), KINDS)
    raise option_invalid(
        f"--from {printable(name)}: this kind of project is unknown",
        evidence=(f"kinds: {', '.join(KINDS)}",),
        fix=f"--from {near}" if near else "paceline new --help",
    )


def _check_name(name: str, target: str) -> None:
    """Check that a folder's name can be typed and pasted anywhere without quotes."""
    if _NAME.fullmatch(name):
        return
    proposed = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-_.")
    raise option_invalid(
        f"{printable(target)!r} is not a name for a project",
        evidence=("allowed: letters, digits, '-', '_' and '.'; a letter or a digit comes first",),
        fix=f"paceline new {proposed or _NEW_NAME}",
    )


def _check_empty(folder: Path, target: str) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise option_invalid(f"{printable(target)} is a file", fix=f"paceline new {_NEW_NAME}")
    present = sorted(path.name for path in folder.iterdir() if path.name not in _ALLOWED)
    if present:
        raise option_invalid(
            f"the folder {printable(target)} is not empty",
            evidence=(f"in it: {shorten(printable(few(present)), 70)}",),
            why="nothing is overwritten",
            fix=f"paceline new {_NEW_NAME}, or another name that is free",
        )


def _not_written(error: OSError, folder: Path) -> Finding:
    return Finding(
        "folder-not-writable",
        f"the project cannot be written: {error.strerror}",
        where=str(error.filename or folder),
        fix="paceline new ~/NAME, or another folder that is yours",
    )


def _example(name: str) -> str:
    """Return an example: the wheel has them in the package, a checkout beside ``src``."""
    package = Path(version.FOLDER)
    folders = (package / "examples", package.parents[1] / "examples")
    for folder in folders:
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8")
    raise SetupError.of(
        "input-unreadable",
        f"this installation of paceline lacks its example {name}",
        where=str(folders[0]),
        fix="pip install --force-reinstall --no-deps paceline",
    )


def _requirements(packages: Sequence[str]) -> list[str]:
    """Return the lines of ``requirements.txt``: the versions that paceline itself asks for."""
    declared = [line.partition(";")[0].strip() for line in _declared()]
    versions = {re.split(r"[^\w.-]", line)[0]: line for line in declared}
    return [
        "paceline[torch]",
        *(versions.get(package, package) for package in (*packages, "pytest")),
    ]


def _declared() -> list[str]:
    try:
        return importlib.metadata.requires("paceline") or []
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return []
