"""``paceline profile check`` against a Slurm that answers from files."""

from __future__ import annotations

import pytest

from fake_slurm import cluster
from printed_json import read_json
from starting import BIN, commands

GOOD = """\
description = "a site"
[slurm]
partition = "gpu"
account = "physics"
gpus-per-node = 4
time = "1-0"
[setup]
modules = ["cuda/12.4"]
[environment]
NCCL_DEBUG = "INFO"
[run]
prefix = "env"
[paths]
runs = "~/runs"
tmp = "/tmp/$USER/$SLURM_JOB_ID"
"""


@pytest.fixture
def check(tmp_path):
    slurm = cluster(tmp_path / "slurm")
    slurm.answer(
        "sbatch",
        err="sbatch: Job 13 to start at 2026-11-21T14:03:00 using 4 processors on nodes n1\n",
    )
    # a login shell reads this: a function, as modules are one
    (tmp_path / ".bash_profile").write_text(
        'module() { case "$*" in *cuda/12.4|load*) ;; *) return 1 ;; esac; }\n'
    )
    with commands(tmp_path) as made:

        def run(text, *words, **env):
            (tmp_path / "site.toml").write_text(text)
            environ = {"PATH": slurm.path, "HOME": str(tmp_path), "USER": "ada", **env}
            words = ("profile", "check", "./site.toml", *words)
            return made.run(*words, program=str(BIN / "paceline"), env=environ)

        run.slurm = slurm
        yield run


def test_a_right_profile_is_told_of_line_by_line(check, tmp_path):
    done = check(GOOD)
    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "ok            file site.toml",
        "ok            partition gpu",
        "ok            account physics",
        "ok            sbatch --test-only",
        "ok            module cuda/12.4",
        "ok            prefix env",
        f"ok            runs {tmp_path}/runs",
        "not answered  tmp /tmp/ada/$SLURM_JOB_ID",
        "ok            environment",
    ]
    (call,) = check.slurm.calls("sbatch")
    assert call[1:3] == ["--test-only", "--wrap=true"] and "--partition=gpu" in call
    assert not (tmp_path / "paceline-runs").exists()


@pytest.mark.parametrize(
    ("old", "new", "name", "what"),
    [
        ('"gpu"', '"gup"', "slurm-request-impossible", "there is no partition gup"),
        ('"physics"', '"fysics"', "slurm-request-impossible", "there is no account fysics"),
        ("gpus-per-node = 4", "gpus-per-node = 99", "slurm-request-impossible", "the most is 8"),
        ('"1-0"', '"9-0"', "slurm-request-impossible", "the time limit of partition gpu"),
        ("cuda/12.4", "cuda/99", "profile-invalid", "there is no module cuda/99"),
        ('"env"', '"no-such-command x"', "profile-invalid", "there is no command no-such-command"),
        ('"~/runs"', '"/proc/runs"', "profile-invalid", "the folder of runs cannot be used"),
        ('"~/runs"', '"~/site.toml/runs"', "profile-invalid", "Not a directory"),
        ('NCCL_DEBUG = "INFO"', 'NCCL_DEBUGG = "INFO"', "variable-unknown", "NCCL_DEBUGG"),
        ("partition =", "partitoin =", "profile-invalid", "no key partitoin"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found(old, new, name, what, check):
    done = check(GOOD.replace(old, new), "--json")
    told = read_json("profile check", done.out)
    (finding,) = told["findings"]
    assert (finding["name"], done.err) == (name, "")
    assert what in finding["what"]
    assert done.status == (1 if finding["severity"] == "error" else 0)
    assert "finding" in [item["state"] for item in told["items"]]


def test_a_conda_environment_is_looked_for(check, tmp_path):
    (tmp_path / ".bash_profile").write_text(
        f"BIN={BIN}\n"
        'conda() { case "$1 $2" in "shell.bash hook") ;; "activate torch") PATH=$BIN:$PATH ;;'
        ' "activate bare") PATH=/usr/bin ;; *) return 1 ;; esac; }\n'
    )
    text = '[setup]\nconda = "torch"\n'
    assert f"ok            conda torch: {BIN}/paceline" in check(text).out.splitlines()
    said = check(text.replace("torch", "nosuch")).out
    assert "there is no conda environment nosuch here" in said
    assert "bare has no paceline" in check(text.replace("torch", "bare")).out
    (tmp_path / ".bash_profile").write_text("PATH=/usr/bin\n")
    assert "not answered  conda torch: the command conda is not" in check(text).out


def test_a_container_is_looked_for(check, tmp_path):
    text = f'[container]\nruntime = "pyxis"\nimage = "{tmp_path}/none.sif"\n'
    check.slurm.answer("srun", "      --container-image=IMAGE  [pyxis] the image\n")
    said = check(text).out
    assert "ok            container pyxis" in said.splitlines()
    assert f"finding       image {tmp_path}/none.sif" in said
    check.slurm.answer("srun", "Usage: srun [OPTIONS...]\n")
    assert "the plug-in pyxis is not installed here" in check(text).out
    assert "there is no command apptainer here" in check(text.replace("pyxis", "apptainer")).out


def test_a_value_that_a_shell_would_fill_in_is_warned_of(check):
    done = check(GOOD.replace('NCCL_DEBUG = "INFO"', 'PATH = "/opt/bin:$PATH"'))
    assert done.status == 0
    assert "warning JOB045 profile-invalid: the job gets the value of PATH unchanged" in done.out


def test_without_slurm_and_modules_what_can_be_looked_at_is(check, tmp_path):
    (tmp_path / ".bash_profile").write_text("")
    for name in ("scontrol", "sinfo", "sacctmgr", "sbatch"):
        check.slurm.silence(name)
    done = check(GOOD)
    assert done.status == 0
    silent = [
        line.split(":")[0] for line in done.out.splitlines() if line.startswith("not answered")
    ]
    assert [line.split()[2] for line in silent] == [
        "partition",
        "account",
        "sbatch",
        "module",
        "tmp",
    ]
