"""Scripts that submit others, what a cluster is known to need, arrays, environments that tasks bring up to date."""

import pytest

from paceline.diagnose.lint import lint
from paceline.diagnose.lint.job import judge
from paceline.diagnose.lint.site import Site, describe

INNER = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node={tasks}
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --mem=0
#SBATCH --time=60
{line}
srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$1:0 train.py
EOF
"""
EARLY = ["variable-expanded-too-early"]


def names(text):
    return [finding.name for finding in judge(text, "a.sh") if finding.severity != "hint"]


def heredoc(line, *, word="EOF", before="", tasks=1):
    return f"#!/bin/bash\n{before}\nsbatch <<{word}\n" + INNER.format(line=line, tasks=tasks)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (heredoc("cd $SLURM_SUBMIT_DIR"), EARLY),
        (heredoc("cd ${SLURM_SUBMIT_DIR}"), EARLY),
        (heredoc("cd \\$SLURM_SUBMIT_DIR"), []),
        (heredoc("cd $SLURM_SUBMIT_DIR", word="'EOF'"), []),
        (heredoc("cd $SLURM_SUBMIT_DIR", word='"EOF"'), []),
        (heredoc("head=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)"), EARLY),
        (heredoc("port=29500\nexport MASTER_PORT=$port"), EARLY),
        (heredoc("port=29500\nexport MASTER_PORT=\\$port"), []),
        (heredoc("export MASTER_PORT=$port", before="port=29500"), []),
        (heredoc("export PATH=$PATH:$HOME/bin"), []),
        (heredoc("export PYTHONPATH=$PYTHONPATH:src"), []),
        (heredoc('echo "Job $SLURM_JOB_ID"'), []),
        (heredoc("cd $SLURM_SUBMIT_DIR", before="#SBATCH --nodes=1"), []),
        ('#!/bin/bash\nsbatch --wrap="srun -n $SLURM_NTASKS hostname"\n', EARLY),
        ("#!/bin/bash\nsbatch --wrap='srun -n $SLURM_NTASKS hostname'\n", []),
        ('#!/bin/bash\nsbatch --wrap "srun -n \\$SLURM_NTASKS hostname"\n', []),
        (
            "#!/bin/bash\ncat > job.sh <<EOF\n"
            + INNER.format(line="cd $SLURM_SUBMIT_DIR", tasks=1),
            [],
        ),
    ],
)
def test_what_is_set_in_the_job_is_expanded_in_the_job(text, expected):
    assert names(text) == expected


def test_the_submitted_script_is_judged_at_its_own_lines():
    text = heredoc("", tasks=4)
    finding = next(finding for finding in judge(text, "a.sh") if finding.name == "double-launch")
    assert text.split("\n")[int(finding.where.partition(":")[2]) - 1].startswith("srun torchrun")
    assert names(heredoc("", tasks="$N", before="N=4")) == ["double-launch"]
    assert names(heredoc("", tasks="$N", before="N=$1")) == []
    assert names(heredoc("#SBATCH --time=$((2 * DAYS))-00:00:00", before="DAYS=$1")) == []
    assert names(heredoc("", tasks=4).replace("sbatch <<", "sbatch --ntasks-per-node=1 <<")) == []


JOB = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=4\n#SBATCH --gpus-per-node=4 -c 8 -t 60 --mem=0\n"


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("srun uv run python train.py", ["env-synced-by-every-task"]),
        ("srun pixi run python train.py", ["env-synced-by-every-task"]),
        ("srun uv run --no-sync python train.py", []),
        ("export UV_NO_SYNC=1\nsrun uv run python train.py", []),
        ("uv sync --frozen\nsrun uv run python train.py", []),
        ("srun -N1 --ntasks-per-node=4 uv run python train.py", []),
        ("export UV_PROJECT_ENVIRONMENT=$SLURM_TMPDIR/env\nsrun uv run python train.py", []),
    ],
)
def test_one_environment_is_not_brought_up_to_date_by_several_nodes(start, expected):
    assert names(f"{JOB}{start}\n") == expected


ARRAY = JOB.replace("#SBATCH --nodes=2", "#SBATCH --array={} --nodes=1")


@pytest.mark.parametrize(
    ("array", "folder", "expected"),
    [
        ("0-3", "runs/a", ["array-with-fixed-run-folder"]),
        ("1,5%2", "runs/a", ["array-with-fixed-run-folder"]),
        ("0-3", "runs/$SLURM_ARRAY_TASK_ID", []),
        ("1-9%1", "runs/a", []),
        ("7", "runs/a", []),
    ],
)
def test_elements_that_run_at_one_time_have_folders_of_their_own(array, folder, expected):
    start = f"srun --ntasks-per-node=1 paceline run --run-dir {folder} train.py\n"
    assert names(ARRAY.format(array) + start) == expected


SHARED = "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core_Memory\nDefMemPerCPU=4000\nGresTypes=gpu,nvme\n"


@pytest.mark.parametrize(
    ("text", "site"),
    [
        ("", Site()),
        (SHARED, Site(limits_memory=True, binds_gpus=True)),
        (SHARED.replace("DefMemPerCPU=4000\n", ""), Site(binds_gpus=True)),
        (SHARED.replace("_Memory", ""), Site(binds_gpus=True)),
        (SHARED.replace("cons_tres", "linear"), Site()),
        (SHARED.replace("DefMemPerCPU", "#DefMemPerCPU"), Site(binds_gpus=True)),
        (
            SHARED + "PartitionName=a Default=YES\nPartitionName=b \\\n  OverSubscribe=EXCLUSIVE\n",
            Site(limits_memory=True, binds_gpus=True, whole_nodes=frozenset("b"), partition="a"),
        ),
    ],
)
def test_a_cluster_is_known_by_its_configuration(text, site):
    assert describe(text) == site


@pytest.mark.parametrize(
    ("configuration", "partition", "expected"),
    [
        ("", "", []),
        (SHARED, "", ["gpus-not-requested", "mem-missing", "partition-missing"]),
        (SHARED + "PartitionName=b OverSubscribe=EXCLUSIVE\n", "#SBATCH -p b\n", []),
        (SHARED + "PartitionName=b OverSubscribe=EXCLUSIVE Default=YES\n", "", []),
    ],
)
def test_advice_on_memory_and_gpus_needs_a_cluster_that_needs_them(
    tmp_path, monkeypatch, configuration, partition, expected
):
    (tmp_path / "slurm.conf").write_text(configuration)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    start = "srun torchrun --standalone --nproc_per_node=4 a.py\n"
    (tmp_path / "a.sbatch").write_text(
        f"#!/bin/bash\n#SBATCH --nodes=1 -t 60 -c 8\n{partition}{start}"
    )
    assert (
        sorted(finding.name for finding in lint([str(tmp_path / "a.sbatch")]).findings) == expected
    )
