"""The door: what a file is, what cannot be read, what is ignored, and how it is all told."""

import io
import json
import os
import random
import sys
from pathlib import Path

import pytest

from paceline.diagnose.lint import lint
from paceline.diagnose.lint.files import MOST_SHELL, SourceFile, is_python
from paceline.diagnose.lint.ignore import unsuppressed
from paceline.diagnose.lint.job import judge
from paceline.diagnose.lint.job.judging import read as read_job
from paceline.diagnose.lint.job.launches import MOST_LAUNCHES
from paceline.diagnose.lint.job.shell.interpret import MOST_COMMANDS
from paceline.diagnose.lint.report import CheckedFile, LintReport
from paceline.errors import Finding

WRONG = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n#SBATCH -c 8 --mem=0 -t 60\npython fit.py\n"
RIGHT = WRONG.replace("python fit.py", "srun --ntasks-per-node=4 python fit.py")
SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.sbatch"))


def written(folder, name, text):
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def names(report):
    return [finding.name for finding in report.findings]


@pytest.mark.parametrize(
    ("name", "text", "python"),
    [
        ("train.py", "x = 1", True),
        ("train.py", "not python at all", True),
        ("train", "#!/usr/bin/env python3\nx = 1", True),
        ("train", "import torch\nprint(1)", True),
        ("job", "#!/bin/bash\nx=1", False),
        ("job", "#SBATCH --nodes=2\n", False),
        ("job.sh", "x = 1", False),
        ("job", "srun python x.py", False),
        ("a.json", '{"a": 1}', False),
        ("job", "a: 1", False),
        ("job.slurm", "import x", False),
    ],
)
def test_a_file_is_taken_for_what_it_is(name, text, python):
    assert is_python(SourceFile(name, text)) is python


def test_a_mistake_is_an_error_and_the_command_ends_with_one(tmp_path):
    report = lint([written(tmp_path, "a.sbatch", WRONG)])
    assert (names(report), report.exit_status) == (["missing-srun"], 1)
    assert report.findings[0].where == f"{tmp_path}/a.sbatch:5"


def test_a_file_without_a_mistake_is_named(tmp_path):
    path = written(tmp_path, "a.sbatch", RIGHT)
    report = lint([path])
    assert (report.render(), report.exit_status) == (f"{path}: nothing found", 0)
    assert report.to_json() == {"findings": []}


def test_hints_alone_are_no_failure(tmp_path):
    report = lint([written(tmp_path, "a.sbatch", RIGHT.replace("-t 60", ""))])
    assert (names(report), report.exit_status) == (["time-missing"], 0)


def test_a_training_script_is_judged_as_one(tmp_path):
    assert lint([written(tmp_path, "a.py", "print('one process')\n")]).exit_status == 0


def unreadable(folder):
    os.mkfifo(folder / "pipe")
    large = folder / "large"
    with open(large, "wb") as file:
        file.truncate(2 * 1024**3)
    return {
        "missing": str(folder / "no-such-file"),
        "folder": str(folder),
        "empty": written(folder, "empty", ""),
        "blank": written(folder, "blank", "\n  \n"),
        "zero": written(folder, "zero", b"#!/bin/bash\n\0"),
        "random": written(folder, "random", random.Random(3).randbytes(4000)),
        "pipe": str(folder / "pipe"),
        "device": "/dev/null",
        "two gigabytes": str(large),
        "a name that cannot be": "a\0b",
    }


def test_what_cannot_be_read_is_told_and_the_others_are_judged(tmp_path):
    files = unreadable(tmp_path)
    report = lint([*files.values(), written(tmp_path, "a.sbatch", WRONG)])
    assert names(report) == ["input-unreadable"] * len(files) + ["missing-srun"]
    assert report.exit_status == 2


def test_a_file_just_below_the_limit_is_read(tmp_path):
    path = written(tmp_path, "a.sh", "#!/bin/bash\necho " + "x" * (MOST_SHELL - 100))
    assert lint([path]).exit_status == 0


def test_a_job_script_has_a_size_and_python_may_be_larger(tmp_path):
    shell = written(tmp_path, "a.sh", "#!/bin/bash\n" + "srun true\n" * (MOST_SHELL // 10))
    python = written(tmp_path, "a.py", "x = 1\n" * (MOST_SHELL // 4))
    assert names(lint([shell])) == ["input-unreadable"]
    assert lint([python]).exit_status == 0


def test_the_work_is_limited_by_numbers_not_by_time():
    source = "#!/bin/bash\n" + "srun torchrun train.py &\n" * 5000
    case = read_job(source, "a.sh")
    assert len(case.trace.calls) <= MOST_COMMANDS
    assert len(case.launches) == MOST_LAUNCHES


def test_other_encodings_are_read(tmp_path):
    path = written(
        tmp_path, "a.sbatch", WRONG.replace("python", "# \u00fcber\npython").encode("latin-1")
    )
    assert names(lint([path])) == ["missing-srun"]


@pytest.mark.parametrize(
    "text",
    [
        WRONG.replace("fit.py", "fit.py  # paceline: ignore missing-srun"),
        WRONG.replace("python", "# paceline: ignore mem-missing, missing-srun\npython"),
        WRONG.replace("#SBATCH --nodes", "# paceline: ignore missing-srun\n#SBATCH --nodes"),
    ],
    ids=["on the line", "on the line before", "in the head"],
)
def test_a_finding_can_be_ignored(tmp_path, text):
    assert names(lint([written(tmp_path, "a.sbatch", text)])) == []


def test_ignoring_another_name_or_line_changes_nothing(tmp_path):
    text = WRONG.replace(
        "python fit.py",
        "# paceline: ignore fixed-port\npython fit.py\n\n# paceline: ignore missing-srun",
    )
    assert names(lint([written(tmp_path, "a.sbatch", text)])) == ["missing-srun"]


def test_ignoring_holds_for_training_scripts_too():
    finding = Finding("set-epoch-missing", "x", where="a.py:2")
    assert (
        unsuppressed([finding], "x\nfor e in range(3):  # paceline: ignore set-epoch-missing\n")
        == []
    )
    assert unsuppressed([finding], "x\nfor e in range(3):\n") == [finding]


def test_the_report_is_sorted_by_file_severity_and_line():
    hint, late = (
        Finding("fixed-port", "p", where="a:2", severity="hint"),
        Finding("double-launch", "d", where="a:9"),
    )
    early = Finding("missing-srun", "m", where="a:3")
    report = LintReport((CheckedFile("b", ()), CheckedFile("a", (hint, late, early))))
    assert report.findings == [early, late, hint]
    text = report.render()
    assert (
        text.index("a: 2 errors")
        < text.index("missing-srun")
        < text.index("double-launch")
        < text.index("fixed")
    )
    assert text.endswith("2 files: 2 errors, 1 hint; 1 file without a finding")
    assert json.loads(json.dumps(report.to_json()))["findings"][0]["where"] == "a:3"


def test_several_files_without_a_finding_are_one_line():
    assert (
        LintReport((CheckedFile("a", ()), CheckedFile("b", ()))).render()
        == "2 files: nothing found"
    )


def test_the_same_finding_is_told_once():
    twice = Finding("missing-srun", "m", where="a:3")
    assert LintReport((CheckedFile("a", (twice, twice)),)).findings == [twice]


def test_the_same_file_is_judged_once_and_the_order_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b.sbatch", "a.sbatch"):
        written(tmp_path, name, WRONG)
    assert [judged.name for judged in lint(["b.sbatch", "a.sbatch", "./b.sbatch"]).files] == [
        "b.sbatch",
        "a.sbatch",
    ]


def test_standard_input_is_read(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(WRONG.encode())))
    report = lint(["-"])
    assert [(finding.name, finding.where) for finding in report.findings] == [
        ("missing-srun", "-:5")
    ]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "README.md",
            "# Training\n\n    srun torchrun train.py\n",
            "neither an sbatch script nor Python: not judged",
        ),
        (
            "README.md",
            "```\n#SBATCH --nodes=2\npython fit.py\n```\n",
            "neither an sbatch script nor Python",
        ),
        ("a.ipynb", '{"cells": [], "nbformat": 4}\n', "neither an sbatch script nor Python"),
        ("a.yaml", "epochs: 3\n", "neither an sbatch script nor Python"),
        ("notes", "hello\n", "neither an sbatch script nor Python"),
        (
            "a.pbs",
            "#PBS -l select=2\nmpiexec python fit.py\n",
            "directives of PBS; only those of Slurm are known",
        ),
        (
            "a.sh",
            "#!/bin/bash\n#$ -pe smp 8\npython fit.py\n",
            "directives of SGE; only those of Slurm are known",
        ),
    ],
)
def test_what_is_not_judged_is_told_and_fails_nothing(tmp_path, name, text, said):
    path = written(tmp_path, name, text)
    report = lint([path])
    assert [(f.name, f.severity, f.where) for f in report.findings] == [
        ("input-unreadable", "hint", path)
    ]
    assert said in report.render()
    assert report.exit_status == 0


def test_a_notebook_is_sent_to_the_converter(tmp_path):
    report = lint([written(tmp_path, "a.ipynb", '{"cells": []}\n')])
    assert report.findings[0].fix.startswith("jupyter nbconvert --to script ")


def test_a_file_that_cannot_be_read_has_no_line(tmp_path):
    assert [finding.where for finding in lint([str(tmp_path), "no-such"]).findings] == [
        str(tmp_path),
        "no-such",
    ]


def test_the_same_input_gives_the_same_text():
    first = [finding.render() for path in SCRIPTS for finding in judge(path.read_text(), path.name)]
    assert first == [
        finding.render() for path in SCRIPTS for finding in judge(path.read_text(), path.name)
    ]


@pytest.mark.parametrize("seed", range(8))
def test_broken_scripts_are_judged_without_a_traceback(seed):
    dice = random.Random(seed)
    signs = "'\"`$(){}[]<>|&;\\\n #=*!-"
    for path in dice.sample(SCRIPTS, 25):
        text = path.read_text()
        for _ in range(dice.randint(1, 6)):
            at = dice.randrange(len(text))
            text = (
                text[:at]
                + dice.choice(signs) * dice.randint(1, 3)
                + text[at + dice.choice((0, 0, 5)) :]
            )
        judge(text, path.name)
        judge(text[: dice.randrange(len(text))], path.name)


@pytest.mark.parametrize(
    ("name", "found"), [("__init__.py", []), ("train.py", [("input-unreadable", "hint")])]
)
def test_an_empty_module_is_no_error(tmp_path, name, found):
    (tmp_path / name).write_text("\n")
    report = lint([str(tmp_path / name)])
    assert [(finding.name, finding.severity) for finding in report.findings] == found
    assert report.exit_status == 0
