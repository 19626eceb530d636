"""Signals of --signal and whom they reach, and what a job script takes for set that is not."""

import pytest

from paceline.diagnose.lint.job import judge

HEAD = "#!/bin/bash\n#SBATCH --nodes=1 --ntasks-per-node=1 --gpus-per-node=4 --cpus-per-task=8 --mem=0 --time=60\n"
RUN = "torchrun --standalone --nproc_per_node=4 train.py"


def found(text, name="signal-not-forwarded"):
    return [finding for finding in judge(text, "a.sbatch") if finding.name == name]


@pytest.mark.parametrize("signal", ["USR1@120", "SIGUSR1@120", "10@120", "USR2"])
def test_torchrun_dies_of_a_signal_that_it_does_not_hand_on(signal):
    findings = found(f"{HEAD}#SBATCH --signal={signal}\nsrun {RUN}\n")
    assert [(finding.severity, finding.where) for finding in findings] == [
        ("warning", "a.sbatch:3")
    ]
    after = "@120" if "@" in signal else ""
    assert findings[0].fix.startswith(
        f"#SBATCH --signal=TERM{after}, or torchrun --signals-to-handle=SIGUSR"
    )


@pytest.mark.parametrize(
    ("signal", "run"),
    [
        ("TERM@120", RUN),
        (
            "USR1@120",
            RUN.replace("--standalone", "--standalone --signals-to-handle=SIGUSR1,SIGTERM"),
        ),
        ("USR1@120", RUN.replace("torchrun", "paceline run")),
        ("USR1@120", RUN.replace("--standalone", "$OPTIONS")),
        ("USR1@120", "python train.py"),
    ],
    ids=["handed on", "told to", "paceline run", "options unknown", "no launcher"],
)
def test_who_takes_the_signal_is_left_alone(signal, run):
    assert found(f"{HEAD}#SBATCH --signal={signal}\nsrun {run}\n") == []


def batch(trap, wait, *, signal="USR1", run="python train.py"):
    return f"{HEAD}#SBATCH --signal=B:{signal}@120\n{trap}\nsrun {run} &\npid=$!\n{wait}\n"


def test_a_trap_ends_the_only_wait():
    findings = found(batch("trap 'kill -USR1 $pid' USR1", "wait $pid"))
    assert [(finding.severity, finding.where) for finding in findings] == [
        ("warning", "a.sbatch:7")
    ]
    assert findings[0].fix == "wait $pid  (once more, below it)"


@pytest.mark.parametrize(
    ("trap", "wait"),
    [
        ("trap 'kill -USR1 $pid' USR1", "wait $pid; wait $pid"),
        ("trap 'kill -USR1 $pid' USR1", "wait $pid\nwait $pid"),
        ("trap 'kill -USR1 $pid; wait $pid' USR1", "wait $pid"),
        ("trap 'kill -USR1 $pid; sleep 60; exit 0' USR1", "wait $pid"),
        ("trap forward USR1", "wait $pid"),
        ("trap 'kill -USR1 $pid' USR1", "while kill -0 $pid; do wait $pid; done"),
        ("trap 'kill -USR1 $pid' USR1", "wait $pid\nsleep 120"),
    ],
)
def test_a_script_that_waits_on_or_may_do_so_is_left_alone(trap, wait):
    assert found(batch(trap, wait)) == []


def test_a_trap_that_hands_a_deadly_signal_to_torchrun_is_told():
    assert len(found(batch("trap 'kill -USR1 $pid' USR1", "wait $pid; wait $pid", run=RUN))) == 1
    assert found(batch("trap 'kill -TERM $pid' USR1", "wait $pid; wait $pid", run=RUN)) == []


def test_the_recipe_waits_twice():
    text = f"{HEAD}#SBATCH --signal=B:USR1@120\nsrun {RUN}\n"
    assert "kill -TERM $PID" in found(text)[0].fix
    assert "wait $PID; wait $PID" in found(text)[0].fix


CPUS = "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\nsrun python train.py\n"


def test_cpus_per_task_is_set_only_if_it_is_asked_for():
    findings = found(HEAD.replace("--cpus-per-task=8 ", "") + CPUS, "unset-variable")
    assert [(finding.severity, finding.where) for finding in findings] == [
        ("warning", "a.sbatch:3")
    ]


@pytest.mark.parametrize(
    "text",
    [
        HEAD + CPUS,
        HEAD.replace("--cpus-per-task=8 ", "")
        + CPUS.replace("$SLURM_CPUS_PER_TASK", "${SLURM_CPUS_PER_TASK:-8}"),
        HEAD.replace("--cpus-per-task=8 ", "") + "SLURM_CPUS_PER_TASK=8\n" + CPUS,
        HEAD.replace("--cpus-per-task=8 ", "") + CPUS.replace("srun", "srun -c 8"),
        "#!/bin/bash\n" + CPUS,
    ],
    ids=["asked for", "default", "set", "step", "no directives"],
)
def test_cpus_per_task_that_may_be_set_is_left_alone(text):
    assert found(text, "unset-variable") == []


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        (
            f"CUDA_VISIBLE_DEVICES=0,1 {RUN}\n",
            "torchrun --nproc_per_node=2, or name more GPUs in CUDA_VISIBLE_DEVICES",
        ),
        (
            f"{HEAD}export CUDA_VISIBLE_DEVICES=0,1\nsrun {RUN}\n",
            "remove CUDA_VISIBLE_DEVICES; Slurm sets it",
        ),
    ],
)
def test_the_fix_speaks_of_slurm_only_where_slurm_is(text, fix):
    assert [finding.fix for finding in found(text, "gpus-not-visible")] == [fix]
