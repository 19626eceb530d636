"""The hook for pre-commit, in a repository of its own, without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
WRONG = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n#SBATCH -c 8 --mem=0 -t 60\npython fit.py\n"
RIGHT = WRONG.replace("python fit.py", "srun --ntasks-per-node=4 python fit.py")
# The paceline of this environment instead of one that pip would have to fetch.
CONFIG = """
repos:
  - repo: {hooks}
    rev: {revision}
    hooks:
      - id: paceline-lint
        language: system
"""


@pytest.fixture
def run(tmp_path):
    """Run a command in the repository of a user; return its status and output."""
    pytest.importorskip("pre_commit")
    environ = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PRE_COMMIT_HOME": str(tmp_path / "cache"),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ALLOW_PROTOCOL": "file",
    }
    identity = ["-c", "user.name=user", "-c", "user.email=user@example.org"]

    def run_in(folder, *words):
        command = ["git", *identity, *words[1:]] if words[0] == "git" else list(words)
        ended = subprocess.run(
            command,
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        return ended.returncode, ended.stdout + ended.stderr

    return run_in


@pytest.fixture
def project(tmp_path, run):
    """A repository of a user, in which the hook is installed."""
    hooks, project = tmp_path / "hooks", tmp_path / "project"
    for folder in (hooks, project):
        folder.mkdir()
        run(folder, "git", "init", "-q")
    shutil.copy(ROOT / ".pre-commit-hooks.yaml", hooks)
    run(hooks, "git", "add", ".")
    assert run(hooks, "git", "commit", "-q", "-m", "hooks")[0] == 0
    _, revision = run(hooks, "git", "rev-parse", "HEAD")
    config = CONFIG.format(hooks=hooks, revision=revision.strip())
    (project / ".pre-commit-config.yaml").write_text(config)
    status, output = run(project, str(BIN / "pre-commit"), "install")
    assert status == 0, output
    return project


def commit(run, project, **files):
    for name, text in files.items():
        (project / name.replace("_", ".")).write_text(text)
    run(project, "git", "add", ".")
    return run(project, "git", "commit", "-m", "change")


def test_a_commit_with_a_mistake_is_stopped_and_says_which(project, run):
    status, output = commit(run, project, job_sbatch=WRONG, notes_txt="python fit.py\n")
    assert status == 1, output
    assert "missing-srun" in output
    assert "job.sbatch:5" in output
    assert "notes.txt" not in output
    status, output = commit(run, project, job_sbatch=RIGHT)
    assert status == 0, output
    assert "Passed" in output


def test_a_commit_of_other_files_runs_nothing(project, run):
    status, output = commit(run, project, notes_txt="python fit.py\n")
    assert status == 0, output
    assert "no files to check" in output
