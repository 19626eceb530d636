"""What srun starts: nodes, ranks and head come from the step, and what does not fit is refused before it trains."""

from __future__ import annotations

import re
import time

import pytest

from slurm import training

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(90)]
# srun's own names do not resolve here, and Lightning asks nobody else
HEAD = {"MASTER_ADDR": "127.0.0.1"}


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("kind", ["session", "lightning_alone"])
def test_tasks_of_srun_are_ranks(site, kind, tasks):
    training.write(site.folder, kind)
    ended = site.srun(
        "python", "train.py", tasks=tasks, env=HEAD if kind == "lightning_alone" else None
    )
    assert ended.status == 0, ended.err
    assert site.own_job()["JobState"] == "COMPLETED"
    training.assert_trained(site.folder, ranks=2 * tasks)


@pytest.mark.parametrize("kind", training.FIVE)
def test_one_launcher_a_node_starts_the_ranks(site, kind):
    training.write(site.folder, kind)
    ended = site.srun("paceline", "run", "--nproc-per-node", 2, "train.py")
    assert ended.status == 0, ended.err
    assert site.own_job()["JobState"] == "COMPLETED"
    training.assert_trained(site.folder, ranks=4)
    assert ended.err.count("2 nodes x 2 ranks") == 1, "the plan is told by the head alone"
    assert len(re.findall("^paceline: run folder", ended.err, re.M)) == 1, "and so is the end"


@pytest.mark.parametrize("ranks", [2, 1])
def test_several_launchers_on_a_node_are_refused(site, ranks):
    training.write(site.folder, "raw")
    ended = site.srun("paceline", "run", "--nproc-per-node", ranks, "train.py", tasks=2)
    assert ended.seconds < 5
    assert ended.status == 2
    assert ended.err.count("double-launch") == 1, ended.err
    assert re.search(rf"\b2 tasks\b.*\b{ranks} ranks?\b", ended.err), ended.err
    assert "#SBATCH --ntasks-per-node=1" in ended.err
    assert not list(site.folder.glob("up-*"))
    assert not (site.folder / "paceline-runs").exists()
    assert site.own_job()["JobState"] == "FAILED"


@pytest.mark.parametrize("kind", training.FIVE)
def test_srun_forgotten_is_said_at_once(site, kind):
    training.write(site.folder, kind)
    ended = site.run(
        "salloc",
        "--job-name",
        site.mark,
        "--nodes=2",
        "paceline",
        "run",
        "--nproc-per-node",
        2,
        "train.py",
    )
    assert ended.seconds < 3
    assert ended.status == 2
    assert ended.err.count("missing-srun") == 1
    line = re.search(r"^ *fix: (srun .*)$", ended.err, re.M)
    assert line, ended.err
    assert re.search(r"--ntasks-per-node=1 .*paceline run --nproc-per-node[= ]2 train.py$", line[1])
    assert not list(site.folder.glob("up-*"))


def test_the_line_to_paste_works_in_a_terminal_of_a_step(site):
    """That step holds all of the job's CPUs; srun starts the shell on the second node too, without a terminal."""
    training.write(site.folder, "raw")
    (site.folder / "typed.sh").write_text(
        "[ $SLURM_PROCID = 0 ] || exit 0\n"
        'paceline run --nproc-per-node 2 train.py 2>said; eval "$(sed -n "s/^ *fix: //p" said)"\n'
    )
    line = f"srun --job-name={site.mark} --nodes=2 --pty bash typed.sh"
    ended = site.run("script", "--quiet", "--return", "--command", line, "typescript")
    assert ended.status == 0, ended.out
    assert "--overlap" in (site.folder / "said").read_text()
    training.assert_trained(site.folder, ranks=4)


def test_a_head_whose_name_does_not_resolve_is_reached_as_slurm_reaches_it(site):
    training.write(site.folder, "session")
    script = "export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\nsrun "
    for command in (
        "paceline run --rdzv-backend c10d --rdzv-endpoint $MASTER_ADDR:29517 --rdzv-id 1 train.py",
        "bash -c 'MASTER_PORT=29519 RANK=$SLURM_PROCID WORLD_SIZE=2 LOCAL_RANK=0 python train.py --again'",
    ):
        (site.folder / "job.sh").write_text(script + command + "\n")
        ended = site.run(
            "salloc",
            f"--job-name={site.mark}",
            "--nodes=2",
            "--ntasks-per-node=1",
            "bash",
            "job.sh",
        )
        assert ended.status == 0, ended.err
        training.assert_trained(site.folder, ranks=2)
        for path in site.folder.glob("result-*"):
            path.unlink()


def test_the_line_to_paste_works(site):
    training.write(site.folder, "raw")
    text = 'paceline run --nproc-per-node 2 train.py 2>said; eval "$(sed -n "s/^ *fix: //p" said)"'
    ended = site.run("salloc", "--job-name", site.mark, "--nodes=2", "bash", "-c", text)
    assert ended.status == 0, ended.err
    training.assert_trained(site.folder, ranks=4)


@pytest.mark.parametrize("option", [["--nnodes", "1"], ["--no-slurm"]])
def test_one_node_of_several_if_that_is_meant(site, option):
    training.write(site.folder, "raw")
    words = ["paceline", "run", *option, "--nproc-per-node", 2, "train.py"]
    ended = site.run("salloc", "--job-name", site.mark, "--nodes=2", *words)
    assert ended.status == 0, ended.err
    training.assert_trained(site.folder, ranks=2)
    assert re.search(r"Slurm job \d+", ended.err)


@pytest.mark.parametrize(
    "around",
    [
        ["salloc", "--nodes=1"],
        ["srun", "--nodes=1", "--pty"],
        [
            "salloc",
            "--nodes=1",
            "srun",
            "--pty",
            "bash",
            "-c",
            '"$@"',
            "-",
        ],  # a terminal in a shell of a job
    ],
    ids=["salloc", "srun-pty", "salloc-srun-pty"],
)
def test_a_shell_of_a_job_is_no_launch(site, around):
    training.write(site.folder, "raw")
    words = [around[0], f"--job-name={site.mark}", *around[1:]]
    # --pty needs a terminal, which script makes
    line = " ".join([*(f"'{word}'" for word in words), "paceline run --nproc-per-node 2 train.py"])
    ended = site.run("script", "--quiet", "--return", "--command", line, "typescript")
    assert ended.status == 0, ended.out
    training.assert_trained(site.folder, ranks=2)
    assert re.search(r"Slurm job \d+ seen", ended.out), ended.out


def test_the_terminal_of_an_editor_is_no_launch(site):
    """An editor that was started in a job hands the step's variables on to its terminals, long after."""
    training.write(site.folder, "raw")
    seen = site.bash(f"srun --job-name={site.mark} --nodes=1 env | grep ^SLURM_")
    inherited = dict(line.split("=", 1) for line in seen.out.splitlines())
    ended = site.run("paceline", "run", "--nproc-per-node", 2, "train.py", env=inherited)
    assert ended.status == 0, ended.err
    training.assert_trained(site.folder, ranks=2)
    assert re.search(r"Slurm (job|step) \d+", ended.err), "it says what it saw"


def test_nodes_of_different_sizes(site):
    training.write(site.folder, "session")
    run = "paceline run --nproc-per-node $((2 - SLURM_NODEID)) train.py"
    ended = site.srun("bash", "-c", run)
    assert ended.status == 0, ended.err
    training.assert_trained(site.folder, ranks=3)


@pytest.mark.parametrize("busy", ["while True: pass", "time.sleep(600)"])
def test_a_rank_that_raises_ends_the_job_although_another_is_busy(site, busy):
    fault = f"""
    if step == 3 and rank == 0:
        leave("busy", rank)
        {busy}
    if step == 3 and rank == world_size - 1:
        while not os.path.exists("busy"):
            time.sleep(0.01)
        broke()
        raise KeyError("no such column")
    """
    script = training.write(site.folder, "raw", step=fault, epochs=6)
    ended = site.srun("paceline", "run", "--nproc-per-node", 1, "train.py")
    at = time.time()
    assert site.survivors(within_s=1) == []
    job = site.own_job()
    assert at - float((site.folder / "broke-1").read_text()) < 5
    assert (ended.status, job["JobState"], job["ExitCode"]) == (1, "FAILED", "1:0"), ended.err
    lines = script.read_text().splitlines()
    number = next(number for number, line in enumerate(lines, 1) if "raise KeyError" in line)
    assert f"train.py:{number}" in ended.err, ended.err
    assert ended.err.count("cause: rank 1 raised KeyError") == 1, ended.err
