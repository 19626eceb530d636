"""Python in a here-document of a job script is checked as a training script is, on its lines."""

import pytest

from paceline.diagnose.lint import lint

HEAD = """#!/bin/bash
#SBATCH --nodes=1 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=8 --mem=0 --time=60
"""
STRANDED = """import torch.distributed as dist
dist.init_process_group("nccl")
if dist.get_rank() == 0:
    print("ready")
    dist.barrier()
"""
EPOCHS = """import torch, torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
dist.init_process_group("nccl")
sampler = DistributedSampler(data)
loader = DataLoader(data, sampler=sampler)
model = torch.nn.parallel.DistributedDataParallel(net)
for epoch in range(3):
    for x in loader:
        model(x).sum().backward()
"""
WAITS = STRANDED.replace("    dist.barrier()", "dist.barrier()")
OTHER = "import sys\nprint(sys.version)\n"


def job(command, python, *, sign="<<'EOF'", end="EOF"):
    return f"{HEAD}{command} {sign}\n{python}{end}\n"


WRONG = {
    "batch shell": ("collective-in-rank-block", 8, job("python -", STRANDED)),
    "step": ("collective-in-rank-block", 8, job("srun python", STRANDED, sign="<<EOF")),
    "container": ("set-epoch-missing", 7, job("srun apptainer exec --nv a.sif python3 -u - --lr 1", EPOCHS)),
}  # fmt: skip
RIGHT = {
    "right": job("srun python -", WAITS),
    "another program": job("srun tee check.py", STRANDED),
    "written": job("cat > check.py", STRANDED),
    "data of a script": job("srun python train.py", STRANDED),
    "data of a module": job("srun python -m train", STRANDED),
    "data of a command": job("python -c 'import sys; print(len(sys.stdin.read()))'", STRANDED),
    "expanded": job("srun python -", STRANDED.replace("0:", "$MAIN_RANK:"), sign="<<EOF"),
    "other Python": job("python", OTHER),
    "template": job("srun python -", STRANDED.replace("if ", "if {{ x }} "), sign="<<EOF"),
    "ignored": job("srun python -", STRANDED.replace("barrier()", "barrier()  # paceline: ignore collective-in-rank-block")),
    "tabs": job("srun python -", "\timport torch\n\tprint(torch.__version__)\n", sign="<<-'EOF'", end="\tEOF"),
    "here-string": HEAD + "python <<< 'import torch; print(torch.cuda.device_count())'\n",
    "a comment": HEAD + "# python - <<'EOF'\nsrun python train.py\n",
}  # fmt: skip


@pytest.fixture
def found(tmp_path):
    def found(text):
        file = tmp_path / "job.sbatch"
        file.write_text(text)
        findings = lint([str(file)]).findings
        return [(each.name, int(each.where.rpartition(":")[2])) for each in findings if each.severity != "hint"]  # fmt: skip

    return found


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_found_at_its_line(found, case):
    name, line, text = WRONG[case]
    assert (name, line) in found(text)


@pytest.mark.parametrize("case", RIGHT)
def test_what_is_right_or_not_run_is_left_alone(found, case):
    assert found(RIGHT[case]) == []
