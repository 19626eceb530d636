"""What a start inside Slurm rests on: addresses, CPUs and GPUs, how it goes on, whether a save fits the grace."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from paceline.errors import SetupError, UsageError
from paceline.launch.outcome import grace_check, resume
from paceline.launch.outcome.resume import Checkpoint, ResumeCommand
from paceline.launch.plan import endpoint
from paceline.launch.plan import plan as planning
from paceline.launch.plan.parsing import parse
from paceline.launch.plan.starter_defaults import StarterDefaults
from paceline.machine import cpus, host, nodeaddr
from paceline.train import runtime
from paceline.world import World
from refusals import refusal

SLURM_DEFAULTS = StarterDefaults(
    values={"nnodes": "2", "node_rank": "0", "master_addr": "10.0.0.1", "master_port": "15001"},
    source="Slurm step 12.0: node[1-2], head node1",
    num_gpus=4,
    shared_output=True,
)


def asked(starter_defaults=SLURM_DEFAULTS, **typed):
    return parse("train.py", (), typed=typed, inherited={}, starter_defaults=starter_defaults)


def facts(granted_gpus=0, num_gpus=0):
    return host.HostFacts(
        "node1", "linux", 8, "CPU affinity", num_gpus, "no NVIDIA driver answers", (), granted_gpus
    )


def command(folder, name, text):
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)


# ------------------------------------------------------------------------------------------------- the head


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """Call it with what ``scontrol`` prints, and its status."""

    def make(text, status=0):
        command(tmp_path, "scontrol", f"#!/bin/sh\ncat <<'EOF'\n{text}\nEOF\nexit {status}\n")
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return make


def test_a_name_that_resolves_is_the_address(scontrol):
    scontrol("NodeName=localhost NodeAddr=10.1.1.1")
    assert nodeaddr.of_node("localhost") == "localhost"


def test_a_name_that_does_not_is_asked_of_slurm(scontrol, monkeypatch):
    monkeypatch.setattr("socket.getaddrinfo", _unknown)
    scontrol("NodeName=node7 Arch=x86_64 NodeAddr=10.1.1.7 NodeHostName=box")
    assert nodeaddr.of_node("node7") == "10.1.1.7"


@pytest.mark.parametrize(
    ("text", "status"), [("Node node7 not found", 1), ("NodeAddr=10.0.0.1", 1), ("", 0)]
)
def test_where_slurm_does_not_know_either_the_name_stays(scontrol, monkeypatch, text, status):
    monkeypatch.setattr("socket.getaddrinfo", _unknown)
    monkeypatch.setattr("time.sleep", lambda _: None)
    scontrol(text, status)
    assert nodeaddr.of_node("node7") == "node7"


def test_slurm_is_asked_in_the_form_that_we_read(scontrol, monkeypatch, tmp_path):
    monkeypatch.setattr("socket.getaddrinfo", _unknown)
    scontrol("")
    command(
        tmp_path, "scontrol", '#!/bin/sh\n[ "$SLURM_JSON$LC_ALL" = C ] && echo NodeAddr=10.1.1.7\n'
    )
    monkeypatch.setenv("SLURM_JSON", "pretty")
    assert nodeaddr.of_node("node7") == "10.1.1.7"


def test_a_command_of_slurm_that_cannot_be_run_is_not_asked_again(monkeypatch, tmp_path):
    monkeypatch.setattr("socket.getaddrinfo", _unknown)
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("it is asked again"))
    monkeypatch.setenv("PATH", str(tmp_path))
    command(tmp_path, "scontrol", "no program")
    assert nodeaddr.of_node("node7") == "node7"


def test_without_slurm_the_name_stays(monkeypatch):
    monkeypatch.setattr("socket.getaddrinfo", _unknown)
    monkeypatch.setenv("PATH", "")
    assert nodeaddr.of_node("node7") == "node7"


def _unknown(*_, **__):
    raise OSError("Name or service not known")


@pytest.mark.parametrize(
    ("candidates", "mine", "chosen"),
    [
        (["10.0.0.1"], ["127.0.0.1", "10.0.0.1"], "10.0.0.1"),
        (["127.0.1.1"], ["127.0.0.1", "10.0.0.1"], ""),  # as Debian writes it into /etc/hosts
        (["10.0.0.9"], ["10.0.0.1"], ""),  # another host's
        (["127.0.1.1", "10.0.0.1"], ["10.0.0.1"], "10.0.0.1"),
        ([], ["10.0.0.1"], ""),
    ],
)
def test_the_address_of_the_head_leads_to_it_from_elsewhere(candidates, mine, chosen):
    assert endpoint.choose(candidates, mine) == chosen


def test_the_endpoint_can_be_listened_on():
    address, _, port = endpoint.find("").rpartition(":")
    host.listen(address.strip("[]"), int(port)).close()
    assert 15000 <= int(port) < 32000


# ------------------------------------------------------------------------------------------------- the plan


def test_the_plan_says_what_was_taken():
    options = asked(nproc_per_node="2")
    plan = planning.make(options, facts(), environ={}, source="")
    assert "port" not in plan.to_json(), "nobody else learns where the store listens"
    line = planning.describe(plan, options, head="10.0.0.1", run_dir="runs/x")
    assert line.startswith("2 nodes x 2 ranks · Slurm step 12.0: node[1-2], head node1 · ")
    assert "head 10.0.0.1 · " in line


def test_a_rank_for_each_gpu_that_slurm_gave_where_no_driver_answers():
    found = planning.choose_nproc("", facts(granted_gpus=4))
    assert (found.value, found.reason) == (
        4,
        "one per GPU that Slurm gave this node; no NVIDIA driver answers",
    )


def test_what_the_driver_shows_comes_first():
    assert planning.choose_nproc("", facts(granted_gpus=4, num_gpus=2)).value == 2


def test_more_ranks_than_gpus_of_the_step():
    with pytest.raises(UsageError) as caught:
        planning.make(asked(nproc_per_node="8"), facts(granted_gpus=4), environ={}, source="")
    finding = caught.value.finding
    assert finding.name == "gpus-fewer-than-processes"
    assert "#SBATCH --gpus-per-node=8" in finding.fix


@pytest.mark.parametrize(("visible", "granted"), [(None, 4), ("0,1", 4), ("", 0)])
def test_hidden_gpus_are_not_granted(visible, granted):
    assert host.gather(visible, granted_gpus=4).granted_gpus == granted


def test_granted_cpus_are_the_most(monkeypatch):
    monkeypatch.setattr(host, "usable_cpus", lambda: (64, "CPU affinity"))
    assert host.gather(None, granted_cpus=8).usable_cpus == 8
    assert host.gather(None, granted_cpus=96).cpu_reason == "CPU affinity"


@pytest.mark.parametrize(
    ("launcher", "granted", "expected"),
    [
        ("slurm", "8", 32),
        ("slurm", "", 64),
        ("slurm", "96", 256),
        ("paceline", "8", 64),
        ("none", "8", 64),
    ],
)
def test_cpus_of_the_ranks_of_a_node(monkeypatch, launcher, granted, expected):
    monkeypatch.setattr(cpus, "usable_cpus", lambda: (64, "CPU affinity"))
    assert cpus.of_ranks(World(local_world_size=4, launcher=launcher), granted=granted) == expected


@pytest.mark.parametrize(("bound", "expected"), [("1", 32), (None, 8)])
def test_cpus_of_ranks_that_mpirun_has_bound(monkeypatch, bound, expected):
    monkeypatch.setattr(cpus, "usable_cpus", lambda: (8, "CPU affinity"))
    monkeypatch.setattr(cpus.os, "cpu_count", lambda: 48)
    if bound is not None:
        monkeypatch.setenv("OMPI_MCA_orte_bound_at_launch", bound)
    assert cpus.of_ranks(World(local_world_size=4, launcher="mpi"), granted="") == expected
    packages = World(local_world_size=8, launcher="mpi")  # which several tasks share
    assert cpus.of_ranks(packages, granted="") == (48 if bound else 8)


# ------------------------------------------------------------------------------------------------- tasks and devices


def test_more_tasks_than_gpus(monkeypatch):
    monkeypatch.setattr("paceline.machine.accelerator.kind", lambda: "cuda")
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 2)
    world = World(
        rank=3,
        world_size=4,
        local_rank=3,
        local_world_size=4,
        launcher="slurm",
        reason="Slurm step 1.0",
    )
    finding = refusal(SetupError, runtime.take_device, world)
    assert finding.name == "slurm-ntasks-mismatch"
    assert "4 tasks on this node, and 2 GPUs" in finding.what
    assert "#SBATCH --ntasks-per-node=2" in finding.fix


@pytest.mark.parametrize(("devices", "index"), [("2", 0), (None, None)], ids=["own", "the node's"])
def test_a_task_of_mpirun_may_have_a_gpu_of_its_own(monkeypatch, devices, index):
    """A script around each task shows it one GPU; without one, the node has one for all tasks."""
    chosen = []
    monkeypatch.setattr("paceline.machine.accelerator.kind", lambda: "cuda")
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 1)
    monkeypatch.setattr("torch.accelerator.set_device_index", chosen.append)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if devices is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    world = World(rank=2, world_size=4, local_rank=2, local_world_size=4, launcher="mpi")
    if index is None:
        assert refusal(SetupError, runtime.take_device, world).name == "gpus-fewer-than-processes"
    else:
        assert runtime.take_device(world).index == index
        assert chosen == [index]


# ------------------------------------------------------------------------------------------------- going on


def again(environ, submission=(), starter_defaults=SLURM_DEFAULTS):
    return resume.plan(
        asked(starter_defaults, max_restarts="1"),
        run_dir="runs/x",
        function=False,
        numbered=True,
        environ=environ,
        submission=submission,
    )


def test_a_submitted_run_goes_on_by_its_script():
    found = again({"SLURM_JOB_ID": "12"}, ("runs/the run/job.sh",))
    last = Checkpoint("runs/x/checkpoints/00007-step-450", 7, 450)
    assert resume.after_stop(last, found)[1:] == [
        "the job script queues it again; if it does not: sbatch 'runs/the run/job.sh'"
    ]
    assert resume.after_loss(last, found) == ["resume from step 450: sbatch 'runs/the run/job.sh'"]


def test_the_same_folder_without_slurm_goes_on_by_hand():
    assert (
        again({}, ("runs/x/job.sh",), StarterDefaults()).line
        == "paceline run --max-restarts 1 --run-dir runs/x train.py"
    )


def test_in_a_step_one_line_is_for_all_nodes():
    found = again({"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0"})
    lines = resume.after_stop(None, found)
    run = "paceline run --max-restarts 1 --run-dir runs/x train.py"
    assert lines[1] == f"resume: srun --nodes=2 --ntasks=2 --ntasks-per-node=1 {run}"
    assert "scontrol requeue" in lines[2]


@pytest.mark.parametrize(
    ("starter", "words"),
    [("mpi", "by the same mpirun"), ("lsf", "by the same blaunch"), ("pod", "in every pod")],
)
def test_launchers_that_others_start_are_started_again_by_them(starter, words):
    defaults = replace(SLURM_DEFAULTS, starter=starter)
    found = again({}, starter_defaults=defaults)
    run = "paceline run --max-restarts 1 --run-dir runs/x train.py"
    assert resume.after_stop(None, found)[1:] == [f"resume, {words}: {run}"]
    assert resume.after_loss(None, found) == [f"start again, {words}: {run}"]


# ------------------------------------------------------------------------------------------------- the time to save


@pytest.mark.parametrize(
    ("seconds", "grace_s", "warned"),
    [(0.0, 30, False), (18.0, 30, False), (19.0, 30, True), (100.0, 120, True)],
)
def test_a_save_that_does_not_fit_is_warned_of(seconds, grace_s, warned):
    last = Checkpoint("runs/x/checkpoints/00001-step-10", 1, 10, seconds)
    found = grace_check.judge(last, grace_s=grace_s, resume_command=ResumeCommand("x"))
    assert (found is not None) == warned
    if found is not None:
        assert (found.name, found.severity) == ("grace-too-short", "warning")
        assert f"took {seconds:.0f} s" in found.what


def test_without_a_checkpoint_nobody_knows():
    assert grace_check.judge(None, grace_s=1, resume_command=ResumeCommand()) is None


@pytest.mark.parametrize(
    ("again", "fix"),
    [
        (
            ResumeCommand("sbatch job.sh", slurm=True, step=True, submitted=True),
            "paceline submit --grace-s 210 ...",
        ),
        (
            ResumeCommand("srun x", slurm=True, step=True),
            "--grace-s 210, and #SBATCH --signal=TERM@240",
        ),
    ],
)
def test_the_longer_time_follows_from_what_was_measured(again, fix):
    found = grace_check.judge(Checkpoint("c", 1, 10, 100.0), grace_s=30, resume_command=again)
    assert found.fix.startswith(fix)


def test_the_watch_tells_once(monkeypatch, tmp_path):
    told, clock = [], [100.0]
    monkeypatch.setattr(grace_check.time, "monotonic", lambda: clock[0])
    last = Checkpoint("c", 1, 10, 1.0)
    monkeypatch.setattr(grace_check.evidence, "last_checkpoint", lambda folder: last)
    watch = grace_check.SaveWatch(
        tmp_path, grace_s=30, resume_command=ResumeCommand("x"), notice=told.append
    )
    watch.tick()
    assert told == []
    last = replace(last, seconds=60.0)
    watch.tick()  # not yet time to look again
    assert told == []
    for _ in range(3):
        clock[0] += 60
        watch.tick()
    assert len(told) == 1
