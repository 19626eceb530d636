"""What a job script gives to a launcher and to its nodes: the script, shared values, variables."""

import pytest

from paceline.diagnose import lint

HEAD = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --mem=0
#SBATCH --time=04:00:00
#SBATCH --partition=gpu
"""
MEET = "--nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d"
HOST = "--rdzv-endpoint=$(hostname):29500"
WRONG = {
    "script-missing": {
        "python": f"srun torchrun {MEET} {HOST} python train.py",
        "path": f"srun torchrun {MEET} {HOST} /opt/env/bin/python3.11 -u train.py",
        "bash": f"srun torchrun {MEET} {HOST} bash train.sh",
        "accelerate": "accelerate launch --num_processes 4 python train.py",
    },
    "rendezvous-differs-by-node": {
        "id": f"export M=$(hostname)\nsrun bash -c 'torchrun {MEET} --rdzv-id=$RANDOM --rdzv-endpoint=$M:29500 train.py'",
        "port": f"export M=$(hostname)\nsrun bash -c 'torchrun {MEET} --rdzv-endpoint=$M:$((RANDOM + 20000)) train.py'",
        "clock": f"export M=$(hostname)\nsrun bash -c 'torchrun {MEET} --rdzv-id=$(date +%s) --rdzv-endpoint=$M:29500 train.py'",
    },
    "unset-variable": {
        "address": "MASTER_ADDR=$(hostname)\nsrun python train.py",
        "setting": "NCCL_SOCKET_IFNAME=ib0\nsrun python train.py",
        "threads": "OMP_NUM_THREADS=8\nsrun python train.py",
    },
}
RIGHT = {
    "script-missing": {
        "script": f"srun torchrun {MEET} {HOST} train.py",
        "no python": f"srun torchrun {MEET} {HOST} --no-python python train.py",
        "module": f"srun torchrun {MEET} {HOST} --module python.train",
        "named alike": f"srun torchrun {MEET} {HOST} python_train.py",
        "python before it": f"srun python -m torch.distributed.run {MEET} {HOST} train.py",
        "plain": "srun python train.py",
        "an argument": f"srun torchrun {MEET} {HOST} train.py python",
        "options unknown": f"srun torchrun $OPTIONS {MEET} {HOST} python train.py",
        "paceline": "srun paceline run python train.py",
        "bash before it": f"srun bash -c 'torchrun {MEET} {HOST} train.py'",
    },
    "rendezvous-differs-by-node": {
        "batch": f"srun torchrun {MEET} {HOST} --rdzv-id=$RANDOM train.py",
        "variable": f"export ID=$RANDOM M=$(hostname)\nsrun bash -c 'torchrun {MEET} --rdzv-id=$ID --rdzv-endpoint=$M:29500 train.py'",
        "job": f"export M=$(hostname)\nsrun bash -c 'torchrun {MEET} --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint=$M:29500 train.py'",
        "argument": f"srun bash -c 'torchrun {MEET} --rdzv-id=7 --rdzv-endpoint=$M:29500 train.py --seed $RANDOM'",
        "one node": "srun -N 1 bash -c 'torchrun --standalone --nproc-per-node=4 --rdzv-id=$RANDOM train.py'",
        "folder": f"srun bash -c 'torchrun {MEET} --rdzv-endpoint=$M:29500 --log-dir=/tmp/$RANDOM train.py'",
        "double quotes": f'export M=$(hostname)\nsrun bash -c "torchrun {MEET} --rdzv-id=$RANDOM --rdzv-endpoint=$M:29500 train.py"',
        "port of the job": f"export P=$((20000 + SLURM_JOB_ID % 30000))\nsrun torchrun {MEET} --rdzv-endpoint=$(hostname):$P train.py",
        "name": f"srun bash -c 'torchrun {MEET} --rdzv-id=RANDOM --rdzv-endpoint=$M:29500 train.py'",
        "comment": f"# --rdzv-id=$RANDOM\nsrun torchrun {MEET} {HOST} train.py",
    },
    "unset-variable": {
        "exported": "export MASTER_ADDR=$(hostname)\nsrun python train.py",
        "exported later": "MASTER_ADDR=$(hostname)\nexport MASTER_ADDR\nsrun python train.py",
        "both": "MASTER_ADDR=$(hostname); MASTER_PORT=29500\nexport MASTER_ADDR MASTER_PORT\nsrun python train.py",
        "declared": "declare -x NCCL_DEBUG=INFO\nsrun python train.py",
        "all": "set -a\nNCCL_DEBUG=INFO\nsrun python train.py",
        "used": f"MASTER_ADDR=$(hostname)\nsrun torchrun {MEET} --rdzv-endpoint=$MASTER_ADDR:29500 train.py",
        "prefix": "NCCL_DEBUG=INFO srun python train.py",
        "by srun": "NCCL_DEBUG=INFO\nsrun --export=ALL,NCCL_DEBUG python train.py",
        "by env": "OMP_NUM_THREADS=4\nsrun env OMP_NUM_THREADS=$OMP_NUM_THREADS python train.py",
        "sourced": "MASTER_ADDR=$(hostname)\nsource environment.sh\nsrun python train.py",
        "its own": "ADDRESS=$(hostname)\nsrun python train.py",
    },
}


def names(tmp_path, text):
    script = tmp_path / "job.sbatch"
    script.write_text(f"{HEAD}{text}\n", encoding="utf-8")
    return [finding.name for finding in lint.lint([str(script)]).findings]


def rows(table):
    return [
        pytest.param(name, text, id=f"{name}: {kind}")
        for name, texts in table.items()
        for kind, text in texts.items()
    ]


@pytest.mark.parametrize(("name", "text"), rows(WRONG))
def test_the_mistake_is_found(tmp_path, name, text):
    assert name in names(tmp_path, text)


@pytest.mark.parametrize(("name", "text"), rows(RIGHT))
def test_its_neighbour_is_left_alone(tmp_path, name, text):
    assert name not in names(tmp_path, text)
