"""``paceline submit`` as it is typed: the job script compared whole, submission to a Slurm of files, and mistakes.

After a wanted change: ``python -m pytest tests/launch/test_submit.py --update-goldens``, and read the difference.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from fake_slurm import FakeSlurm, cluster
from paceline.diagnose import lint
from printed_json import read_json
from starting import BIN, commands

GOLDENS = Path(__file__).with_name("golden_submit")
EXAMPLE = Path(__file__).parents[2] / "examples" / "profiles" / "two-sockets.toml"

NASTY = [
    "two words",
    "it's",
    'the "best"',
    "größe",
    "$(touch escaped)",
    "`touch escaped`",
    "a;touch escaped;b",
    "a\nb",
    "a\r\nb",
    "-x",
    "--follow",
    "50%j",
    "back\\slash",
    "#comment",
    "!!",
    "~",
    "*",
    "$HOME",
    "\x1b[31m",
    "",
]


@dataclass
class Place:
    """A folder with a script, and a Slurm that answers from files."""

    folder: Path
    slurm: FakeSlurm
    command: object

    def submit(self, *words, cwd=None, env=None):
        environ = {
            "PATH": self.slurm.path,
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": "",
            "USER": "ada",
        }
        return self.command.run(
            "submit", *words, program="./paceline", cwd=cwd, env={**environ, **(env or {})}
        )


class _Commands:
    """Starts ``paceline`` with other words than ``run``."""

    def __init__(self, made):
        self._made = made

    def run(self, *words, program, cwd, env):
        return self._made.run(*words, program=str(BIN / "paceline"), cwd=cwd, env=env)


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "digits"
    folder.mkdir()
    (folder / "train.py").write_text("print('trained')\n")
    for name, text in SCRIPTS.items():
        (folder / name).write_text(text)
    with commands(folder) as made:
        yield Place(folder, cluster(tmp_path / "slurm"), _Commands(made))


PLAIN = ("--gpus-per-node", "4", "--cpus-per-gpu", "8", "--mem", "64G", "--time", "4h", "-p", "gpu")
CASES = {
    "bare": ("train.py",),
    "two-nodes": ("--nodes", "2", *PLAIN, "--account", "physics", "train.py", "--lr", "0.1"),
    "without-gpus": (
        *("--nodes", "1-2", "--cpus-per-node", "16", "--time", "90"),
        *("--no-requeue", "train.py"),
    ),
    "options": (
        *("--nodes", "2", *PLAIN, "--grace-s", "300", "--job-name", "digits of today"),
        *("--on-node-loss", "fail", "--sbatch", "--constraint=a100|h100", "--sbatch"),
        *("--exclusive", "--sbatch", "-q long", "--nproc-per-node", "4", "--hang-timeout", "600"),
        *("--check-finite", "-m", "json.tool", "-m", "x"),
    ),
    "quoting": (*PLAIN, "--job-name", "$(touch x) \"a\" 'b' # \\ ü %j", "train.py", *NASTY),
    "profile": ("--nodes", "2", "--profile", str(EXAMPLE), "--time", "1-0", "train.py"),
    "site": ("--profile", "site", "train.py", "--epochs", "3"),
    "sweep": (
        *("--nodes", "2", *PLAIN, "--param", "lr=0.1,0.01", "--param", "name=a b,$(touch x)"),
        *("--array", "0-2%2", "--exclude", "n[1-2]", "train.py", "--lr={lr}", "--out", "{index}"),
    ),
}
SCRIPTS = {
    "lightning_requeues.py": """\
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.environments import SLURMEnvironment

Trainer(plugins=[SLURMEnvironment(auto_requeue=True)])
""",
    "lightning_alone.py": "from lightning.pytorch import Trainer\n\nTrainer()\n",
}
SITE = """\
description = "all that a profile may have"

[slurm]
nodes = 2
gpus-per-node = "a100:4"
cpus-per-gpu = 8
mem = "0"
time = 04:00:00
account = "physics"
partition = "gpu"
requeue = false
exclusive = true
hold = false
constraint = "a100 & nvme"
sbatch = ["--container-image=x y"]

[setup]
modules = ["cuda/12.4", "a $(touch x)"]
lines = ["source /opt/site.sh", "echo $HOSTNAME"]

[environment]
PLAIN = "1"
NASTY = { value = "$(touch x) 'a' \\"b\\"\\n`c`", why = "first line\\n#SBATCH --nodes=99\\nlast line" }

[run]
prefix = "apptainer exec --nv --bind ~/data:/data 'image of $USER.sif'"
hang-timeout = 600
check-finite = true
no-probe = false

[paths]
runs = "~/all runs of $USER"
tmp = "/scratch/$USER/$SLURM_JOB_ID/x y"
"""


def dry_run(place, *words):
    (place.folder / ".paceline" / "profiles").mkdir(parents=True, exist_ok=True)
    (place.folder / ".paceline" / "profiles" / "site.toml").write_text(SITE)
    done = place.submit("--dry-run", *words)
    assert (done.status, done.err) == (0, "")
    assert not [call for call in place.slurm.calls("sbatch") if "--test-only" not in call]
    return done.out


def as_anywhere(text, place):
    """A script without what differs from one machine or minute to the next."""
    text = text.replace(str(place.folder), "/home/ada/digits").replace(
        str(EXAMPLE), "/home/ada/two-sockets.toml"
    )
    text = text.replace(str(BIN), "/opt/venv/bin")
    text = re.sub(r"\d{8}-\d{6}-([\w-]+)-[0-9a-f]{4}\b", r"20261121-140300-\1-3f2a", text)
    return re.sub(r"submit, \d{4}-\d\d-\d\d \d\d:\d\d:", "submit, 2026-11-21 14:03:", text)


@pytest.mark.parametrize("name", CASES)
def test_the_job_script_is_as_it_was(name, place, request):
    script = as_anywhere(dry_run(place, *CASES[name]), place)
    golden = GOLDENS / f"{name}.sh"
    if request.config.getoption("--update-goldens"):
        golden.write_text(script, encoding="utf-8", newline="")
    assert script == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--gpus-per-node", "2", "-p", "gpu,big", "train.py"), "#SBATCH --cpus-per-task=32"),
        ((*PLAIN, "lightning_requeues.py"), "#SBATCH --signal=USR1@180"),
        (
            (*PLAIN, "lightning_requeues.py"),
            "--signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
        ),
    ],
)
def test_what_the_cluster_and_the_script_decide(words, line, place):
    assert line in dry_run(place, *words)


def test_no_golden_is_left_over():
    assert {path.stem for path in GOLDENS.iterdir()} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_lint_finds_nothing_in_a_job_script(name):
    """But hints at what was left to the cluster: its choice may not be wanted."""
    left = {"gpus-not-requested", "mem-missing", "partition-missing", "time-missing"}
    found = lint.lint([str(GOLDENS / f"{name}.sh")]).findings
    assert [finding.name for finding in found if finding.severity != "hint"] == []
    assert {finding.name for finding in found} <= (
        left if name in ("bare", "without-gpus") else set()
    )


@pytest.mark.parametrize("name", CASES)
def test_bash_can_read_a_job_script(name):
    subprocess.run(["bash", "-n", str(GOLDENS / f"{name}.sh")], check=True)


def run_by_bash(place, text, *, status=0):
    """Run a job script with an srun and a paceline that note their words."""
    place.slurm.answer("paceline endpoint", "node1:15000\n")
    place.slurm.answer("paceline requeue")
    place.slurm.answer("srun", status=status)
    fake = place.slurm.folder / "bin" / "paceline"
    script = place.folder / "job.sh"
    script.write_text(text.replace(str(BIN / "paceline"), str(fake)), encoding="utf-8", newline="")
    done = subprocess.run(
        ["bash", str(script)],
        cwd=place.folder,
        env={"PATH": place.slurm.path},
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    return done.returncode


def test_what_was_typed_arrives_at_the_script_as_it_was_typed(place):
    text = dry_run(place, "--job-name", "$(touch escaped)", "train.py", *NASTY)
    assert run_by_bash(place, text) == 0
    (srun,) = place.slurm.calls("srun")
    assert srun[srun.index("train.py") + 1 :] == NASTY
    assert srun[srun.index("--rdzv-endpoint") + 1] == "node1:15000"
    assert not list(place.folder.rglob("escaped"))


@pytest.mark.parametrize(
    "name", ["two words", "it's", 'the "best"', "größe", "$(touch escaped)", "50%j", "-x", "a#b"]
)
def test_folders_and_scripts_may_have_any_name(name, place):
    folder = place.folder / name
    folder.mkdir()
    (folder / f"{name}.py").write_text("print(1)\n")
    done = place.submit("--dry-run", "--", f"{name}.py", cwd=folder)
    assert done.status == 0, done.err
    assert run_by_bash(place, done.out) == 0
    (srun,) = place.slurm.calls("srun")
    assert srun[-1] == f"{name}.py"
    run_dir = Path(srun[srun.index("--run-dir") + 1])
    assert run_dir.parent == folder / "paceline-runs"
    (requeue,) = [call for call in place.slurm.calls("paceline") if call[1] == "requeue"]
    assert requeue[2:] == [str(run_dir), "--status", "0"]
    assert not list(place.folder.rglob("escaped"))


def test_a_profile_cannot_break_out_of_its_quotes(place):
    text = dry_run(place, "--profile", "site", "train.py")
    profile = "srun() { :; }\n" + text[text.index("export PLAIN") : text.index("# this script")]
    printed = subprocess.run(
        ["bash", "-c", profile + '\nprintf "%s|%s" "$NASTY" "$TMPDIR"'],
        env={"SLURM_JOB_ID": "12"}, cwd=place.folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert printed.stdout == "$(touch x) 'a' \"b\"\n`c`|/scratch/ada/12/x y"
    assert [line for line in text.splitlines() if line.startswith("#SBATCH --nodes")] == [
        "#SBATCH --nodes=2"
    ]


@pytest.mark.parametrize("lines", ["", "set -euo pipefail"])
@pytest.mark.parametrize("status", [0, 1, 75, 143])
def test_a_job_ends_as_its_run_does(status, lines, place):
    (place.folder / "lines.toml").write_text(f"[setup]\nlines = ['{lines}']\n")
    text = dry_run(place, "--profile", "./lines.toml", "train.py")
    assert run_by_bash(place, text, status=status) == status
    (requeue,) = [call for call in place.slurm.calls("paceline") if call[1] == "requeue"]
    assert requeue[-2:] == ["--status", str(status)]


def test_before_the_start_it_is_said_that_a_script_will_not_be_queued_again(place):
    for words in (["--dry-run"], []):
        done = place.submit(*words, "lightning_alone.py")
        assert done.status == 0
        assert "warning JOB047 not-saved-at-stop: Lightning's Trainer saves nothing" in done.err
    assert place.submit("--no-requeue", "lightning_alone.py").err == ""


@pytest.mark.parametrize("words", [["--dry-run"], []])
def test_errors_of_lint_are_refused_before_anything_is_written(words, place):
    trainer = "from lightning import Trainer\nTrainer(devices=1, num_nodes=1)\n"
    (place.folder / "alone.py").write_text(trainer)
    (place.folder / "known.py").write_text("# paceline: ignore world-size-mismatch\n" + trainer)
    request = (*words, "--no-requeue", "--nodes", "2", *PLAIN)
    refused = place.submit(*request, "alone.py")
    assert (refused.status, refused.out) == (1, "")
    assert "error NET009 world-size-mismatch" in refused.err and "alone.py:2" in refused.err
    assert not (place.folder / "paceline-runs").exists()
    assert place.submit(*request, "known.py").status == 0


def test_variables_that_the_job_takes_along_are_judged(place):
    shell = {"NCCL_ALGO": "Tree", "NCCL_TIMEOUT": "9", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    done = place.submit("--dry-run", "train.py", env=shell)
    assert done.status == 0
    assert all(f"  {name}={value}\n" in done.err for name, value in shell.items())
    (place.folder / "own.toml").write_text("[environment]\nNCCL_ALGO = 'Ring'\n")
    for words in (["--sbatch", "--export=NONE"], ["--profile", "./own.toml"]):
        done = place.submit("--dry-run", *words, "train.py", env={"NCCL_ALGO": "Tree"})
        assert (done.status, done.err) == (0, "")


JOB = """\
#!/bin/bash
#SBATCH -A physics -p gpu --nodes=2 --ntasks-per-node=4 --cpus-per-task=8
#SBATCH --gres=gpu:a100:4 --mem=128G --time=1-12:00:00 --qos=long --output=logs/%j.out
set -e
module load cuda/12.4 \\
    gcc/13
ENV=/proj/venv
source $ENV/bin/activate
export HF_HOME=/proj/hf
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
if [ -d logs ]; then
  echo there
fi
srun python train.py --lr 0.1
export AFTER=1
"""


def test_a_job_script_that_somebody_has_gives_what_is_not_typed(place):
    (place.folder / "job.sbatch").write_text(JOB)
    done = place.submit("--dry-run", "--from", "job.sbatch", "--time", "2h", "train.py")
    assert done.status == 0, done.err
    directives = dict(re.findall(r"#SBATCH --([\w-]+)=(.*)", done.out))
    expected = {
        **{"account": "physics", "partition": "gpu", "nodes": "2", "qos": "long", "mem": "128G"},
        **{"gpus-per-node": "a100:4", "ntasks-per-node": "1", "cpus-per-task": "32"},
        "time": "02:00:00",
    }
    assert directives.items() >= expected.items()
    set_up = JOB[JOB.index("module") : JOB.index("export MASTER")]
    assert f"\n\n{set_up}" in done.out
    assert "MASTER_ADDR" not in done.out and "AFTER" not in done.out
    _, *left_out = done.err.splitlines()
    assert [line.split()[0] for line in left_out] == ["#SBATCH", "set", "export", "if"]


def test_a_job_script_that_is_submitted_has_its_run_folder_already(place):
    place.submit("train.py")
    (path,) = (place.folder / "paceline-runs").glob("*/job.sh")
    text = path.read_text()
    assert f"#   sbatch {path}\n" in text
    assert f"#SBATCH --output={path.parent}/slurm.out\n" in text
    assert f"paceline endpoint --run-dir {path.parent}) || exit\n" in text


def test_a_job_is_submitted_and_told_of(place):
    done = place.submit("--nodes", "2", *PLAIN, "train.py", "--lr", "0.1")
    assert (done.status, done.err) == (0, "")
    (run_dir,) = (place.folder / "paceline-runs").iterdir()
    assert done.out.splitlines() == [
        "job 12, train, is queued",
        f"its output: paceline-runs/{run_dir.name}/slurm.out",
        f"follow it:  paceline follow paceline-runs/{run_dir.name}",
    ]
    (sbatch,) = place.slurm.calls("sbatch")
    assert sbatch[1:] == ["--parsable", str(run_dir / "job.sh")]
    job = json.loads((run_dir / "job.json").read_text())
    assert {key: job[key] for key in ("version", "job_id", "nodes", "script", "name", "on_node_loss")} == {
        "version": 1, "job_id": "12", "nodes": "2", "script": "train.py", "name": "train", "on_node_loss": "requeue"
    }  # fmt: skip
    assert f"--output={run_dir}/slurm.out" in (run_dir / "job.sh").read_text()


def test_a_program_is_told_in_json(place):
    place.slurm.answer("sbatch", "12;alps\n")
    done = place.submit("--json", "--run-dir", "mine", "train.py")
    told = read_json("submit", done.out)
    assert (told["job_id"], told["cluster"], told["follow"]) == (
        "12",
        "alps",
        "paceline follow mine",
    )
    assert told["output"] == str(place.folder / "mine" / "slurm.out")


def test_what_sbatch_warns_of_is_shown(place):
    place.slurm.answer("sbatch", "12\n", err="sbatch: your quota is nearly used up\n")
    done = place.submit("train.py")
    assert (done.status, done.err) == (0, "sbatch: your quota is nearly used up\n")


def test_a_run_folder_goes_to_a_second_job_once_the_first_has_ended(place):
    assert place.submit("--run-dir", "mine", "train.py").status == 0
    place.slurm.answer("squeue", "12|RUNNING|node1|N/A|None\n")
    done = place.submit("--run-dir", "mine", "train.py")
    assert done.status == 2
    assert (
        "option-contradicted: the run folder" in done.err and "job 12, which is running" in done.err
    )
    place.slurm.answer("squeue", "12|COMPLETED|node1|N/A|None\n")
    place.slurm.answer("sbatch", "13\n")
    assert place.submit("--run-dir", "mine", "train.py").status == 0
    job = json.loads((place.folder / "mine" / "job.json").read_text())
    assert (job["job_id"], job["earlier_ids"]) == ("13", ["12"])


def test_a_job_of_another_cluster_is_looked_for_there(place):
    place.slurm.answer("sbatch", "12;alps\n")
    assert place.submit("--run-dir", "mine", "train.py").status == 0
    place.slurm.answer("squeue -M alps", "12|RUNNING|node1|N/A|None\n")
    done = place.submit("--run-dir", "mine", "train.py")
    assert done.status == 2 and "scancel -M alps 12" in done.err


def test_where_nobody_tells_whether_the_first_job_has_ended_it_says_so_and_goes_on(place):
    assert place.submit("--run-dir", "mine", "train.py").status == 0
    place.slurm.silence("squeue")
    done = place.submit("--run-dir", "mine", "train.py")
    assert done.status == 0
    assert "squeue does not show whether job 12" in done.err


@pytest.mark.parametrize(
    "text", ["Socket timed out on send/recv operation", "Unable to contact slurm controller"]
)
def test_what_may_have_been_queued_keeps_its_folder(text, place):
    place.slurm.answer(
        "sbatch", status=1, err=f"sbatch: error: Batch job submission failed: {text}\n"
    )
    done = place.submit("train.py")
    (run_dir,) = (place.folder / "paceline-runs").iterdir()
    assert done.status == 2
    assert "JOB042 slurm-unavailable" in done.err
    assert f"the run folder {run_dir} is kept" in done.err and "fix: squeue --me" in done.err
    assert (run_dir / "job.sh").exists()


def test_a_refusal_leaves_a_run_folder_as_it_was(place):
    assert place.submit("--run-dir", "mine", "train.py").status == 0
    before = (place.folder / "mine" / "job.sh").read_bytes()
    place.slurm.answer(
        "sbatch", status=1, err="sbatch: error: Batch job submission failed: Invalid qos\n"
    )
    assert place.submit("--run-dir", "mine", "--time", "1h", "train.py").status == 2
    assert (place.folder / "mine" / "job.sh").read_bytes() == before


def test_sbatch_is_not_overruled_by_variables_of_the_shell(place):
    """sbatch takes SBATCH_PARTITION over what the script says; inside a job Slurm's variables tell of that one."""
    env = {
        "SBATCH_PARTITION": "cpu",
        "SBATCH_ACCOUNT": "physics",
        "SLURM_JOB_ID": "7",
        "SLURM_CPU_BIND": "cores",
    }
    place.submit("--partition", "gpu", "train.py", env={**env, "SLURM_CONF": "/etc/x"})
    seen = place.slurm.environ_of("sbatch")
    assert {name: value for name, value in seen.items() if name.startswith(("SBATCH_", "SLURM_"))} == {
        "SBATCH_ACCOUNT": "physics", "SLURM_CONF": "/etc/x"
    }  # fmt: skip


def test_the_impossible_is_refused_before_it_waits_for_ever(place):
    place.slurm.answer(
        "sbatch --test-only", status=1, err="allocation failure: Requested node configuration ..."
    )
    done = place.submit("--gpus-per-node", "9", "train.py")
    assert done.status == 2
    assert "JOB040 slurm-request-impossible: no node of partition gpu has 9 GPUs" in done.err
    assert "  fix: --gpus-per-node 8\n" in done.err
    (tried,) = place.slurm.calls("sbatch")
    assert tried[1] == "--test-only"
    assert not (place.folder / "paceline-runs").exists()


def test_what_sbatch_would_take_is_submitted_with_a_warning(place):
    """A plugin of the site may make right what its tables say is impossible."""
    done = place.submit("--gpus-per-node", "9", "--cpus-per-gpu", "8", "train.py")
    assert done.status == 0
    assert (
        "slurm-request-impossible: no node of partition gpu has 9 GPUs" in done.err
        and "warning" in done.err
    )
    tried, submitted = place.slurm.calls("sbatch")
    assert {"--test-only", "--nodes=1", "--gpus-per-node=9"} <= set(tried)
    assert "--test-only" not in submitted


GPUS = ("--gpus-per-node", "2", "train.py")


def test_without_an_answer_of_slurm_the_cpus_of_a_gpu_are_not_guessed(place):
    for name in ("scontrol", "sinfo"):
        place.slurm.silence(name)
    for words in (GPUS, ("--dry-run", *GPUS)):
        done = place.submit(*words)
        assert (done.status, done.out) == (2, "")
        assert "JOB015 cpus-per-task-missing: --gpus-per-node 2 without CPUs" in done.err
        assert "fix: --cpus-per-gpu 8" in done.err
    assert place.submit("--cpus-per-gpu", "8", *GPUS).status == 0


def test_reserved_cores_are_not_asked_for(place):
    """Slurm then takes the job without CPUs, and refuses the share that its tables show."""
    place.slurm.answer(
        "sbatch --test-only --cpus-per-task=32", status=1, err="configuration is not available\n"
    )
    done = place.submit(*GPUS)
    assert done.status == 2
    assert "Slurm does not give 32 CPUs with them" in done.err
    place.slurm.answer("sbatch --test-only", status=1, err="Invalid qos\n")
    place.slurm.answer("sbatch --parsable", "12\n")
    assert place.submit(*GPUS).status == 0, "what else is wrong, sbatch says itself"


START = "sbatch: Job 12 to start at 2026-11-21T14:33:24 using 1 processors on nodes node1"


@pytest.mark.parametrize(
    ("told", "status"),
    [(f"{START} in partition short", 2), (START, 2), (f"{START} in partition gpu", 0)],
)
def test_a_time_beyond_the_partition_is_refused_though_sbatch_takes_it_but_in_another(
    told, status, place
):
    place.slurm.answer("sbatch --test-only", err=f"{told}\n")
    done = place.submit("--partition", "short", "--time", "2h", "train.py")
    assert done.status == status
    assert "the time limit of partition short is 01:00:00" in done.err
    assert (place.folder / "paceline-runs").exists() == (status == 0)


def test_without_time_that_of_the_shell_is_taken(place):
    done = place.submit("--dry-run", "train.py", env={"SBATCH_TIMELIMIT": "4"})
    assert "#SBATCH --time=00:04:00\n" in done.out and "#SBATCH --signal=TERM@120\n" in done.out
    assert " --grace-s 60 " in done.out
    done = place.submit("--dry-run", "--time", "1h", "train.py", env={"SBATCH_TIMELIMIT": "4"})
    assert "#SBATCH --time=01:00:00\n" in done.out
    done = place.submit("--dry-run", "train.py", env={"SBATCH_TIMELIMIT": "soon"})
    assert done.status == 2 and "SBATCH_TIMELIMIT" in done.err and "Traceback" not in done.err


def test_where_slurm_does_not_answer_nothing_is_said(place):
    for name in ("scontrol", "sinfo", "sacctmgr"):
        place.slurm.silence(name)
    done = place.submit("--gpus-per-node", "99", "--cpus-per-gpu", "8", "-A", "nobody", "train.py")
    assert (done.status, done.err) == (0, "")


def test_a_refusal_is_told_with_its_text_and_its_meaning(place):
    text = "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified\n"
    place.slurm.answer("sbatch", status=1, err=text)
    done = place.submit("train.py")
    assert done.status == 2
    assert (
        "JOB041 slurm-refused" in done.err
        and text.strip() in done.err
        and "sacctmgr show assoc" in done.err
    )
    assert list((place.folder / "paceline-runs").iterdir()) == []


def test_without_sbatch_the_dry_run_is_named(place, tmp_path):
    bare = tmp_path / "bin"
    bare.mkdir()
    done = place.submit("train.py", env={"PATH": str(bare)})
    assert done.status == 2
    assert "JOB042 slurm-unavailable" in done.err and "--dry-run" in done.err
    assert place.submit("--dry-run", "train.py", env={"PATH": str(bare)}).status == 0


MISUSE = [
    ([], "Missing argument 'SCRIPT'", "paceline submit --help"),
    (["trian.py"], "there is no file trian.py", "did you mean train.py?"),
    (["."], "is a folder, not a script", "paceline submit train.py"),
    (["--nodes", "two", "train.py"], "--nodes two", "--nodes 2"),
    (["--nodes", "1:2", "train.py"], "--nodes 1:2", "--nodes 1-2"),
    (["--time", "soon", "train.py"], "--time soon", "--time 2h"),
    (["-m", "no_such_module"], "there is no module no_such_module", "paceline submit script.py"),
    (["--mem", "64GB", "train.py"], "--mem 64GB", "--mem 64G"),
    (["--sbatch", "--array=1-3", "train.py"], "sets --array itself", "--array 1-3"),
    (["--sbatch", "--comment=a\nb", "train.py"], "without control characters", ""),
    (["--gpu-per-node", "4", "train.py"], "has no option --gpu-per-node", "--gpus-per-node"),
    (["--nnodes", "2", "train.py"], "has no option --nnodes", "--nodes"),
    (["--hang-timeout", "no", "train.py"], "--hang-timeout no", "--hang-timeout 15m"),
    (["--grace-s", "600", "--time", "10m", "train.py"], "leaves nothing of --time", "--time"),
    (["--profile", "nowhere", "train.py"], "there is no profile nowhere", "write "),
    (["--run-dir", "a\\b", "train.py"], "its name has '\\\\'", "--run-dir FOLDER"),
]


@pytest.mark.parametrize(
    ("words", "what", "fix"), MISUSE, ids=[" ".join(words) for words, _, _ in MISUSE]
)
def test_a_mistake_is_told_with_what_to_type(words, what, fix, place):
    done = place.submit("--dry-run", *words)
    assert done.status == 2
    assert what in done.err
    assert fix in done.err.partition("\n  fix: ")[2]
    assert "Traceback" not in done.err


def test_one_node_is_what_is_meant_without_nodes(place):
    script = dry_run(place, "--nproc-per-node", "2", "train.py")
    assert "#SBATCH --nodes=1\n" in script and "--nproc-per-node 2" in script


def test_a_script_with_a_syntax_error_is_not_queued(place):
    (place.folder / "train.py").write_text("print(\n")
    done = place.submit("train.py")
    assert done.status == 1 and "syntax error" in done.err
    assert place.slurm.calls() == []
