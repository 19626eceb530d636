"""A job and the training script that it starts, judged together: each row is a mistake that needs both to be seen."""

import json
from pathlib import Path

import pytest

from paceline.diagnose.lint import lint

LIGHTNING = """
import os
import lightning as L
from argparse import ArgumentParser
parser = ArgumentParser()
parser.add_argument("--devices", type=int, default=2)
parser.add_argument("--num-workers", type=int, default=4)
args = parser.parse_args()
trainer = L.Trainer({})
trainer.fit(model)
"""
RAW = """
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader
{}
"""
MISMATCH = ["error slurm-ntasks-mismatch"]


def job(start, *, nodes=1, tasks=1, gpus=4, more="", cpus=64):
    """A job script of so many nodes, tasks on each (None: not given) and GPUs."""
    per_node = "" if tasks is None else f"#SBATCH --ntasks-per-node={tasks}\n"
    return (
        f"#!/bin/bash\n#SBATCH --nodes={nodes}\n{per_node}#SBATCH --gpus-per-node={gpus}\n"
        f"#SBATCH --cpus-per-task={cpus}\n#SBATCH --mem=0\n#SBATCH --time=60\n{more}{start}\n"
    )


SRUN = "srun python train.py"
NO_RANK, TOO_MANY = ["error rank-env-missing"], ["warning workers-exceed-cpus"]


def found(folder, text, program, *, name="train.py"):
    """What is found in the job script beside hints."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(program)
    (folder / "job.sbatch").write_text(text)
    judged = lint([str(folder / "job.sbatch")]).files[0]
    return sorted(
        f"{finding.severity} {finding.name}"
        for finding in judged.findings
        if finding.severity != "hint"
    )


@pytest.mark.parametrize(
    ("arguments", "start", "options", "names"),
    [
        ("devices=2", SRUN, {}, MISMATCH),
        ("devices=2", SRUN, {"tasks": 2}, []),
        ("devices=1", SRUN, {"tasks": 4}, MISMATCH),
        ("devices=2, num_nodes=2", SRUN, {"tasks": 2, "nodes": 2}, []),
        ("devices=2", SRUN, {"tasks": 2, "nodes": 2}, MISMATCH),
        ("devices=args.devices", SRUN, {}, MISMATCH),
        ("devices=args.devices", "srun python train.py --devices 4", {"tasks": 4}, []),
        ("devices=args.devices", "srun python train.py --devices=4", {"tasks": 2}, MISMATCH),
        ("devices=args.devices", "srun python train.py --devices $N", {}, []),
        ("devices=args.devices", 'srun python train.py --data "$DATA"', {}, MISMATCH),
        ("devices=args.devices", "srun python train.py $OPTIONS", {}, []),
        ('devices=int(os.environ["WORLD_SIZE"])', "torchrun --nproc_per_node=4 train.py", {}, []),
        ("devices=args.devices", 'srun python train.py "$@"', {}, []),
        ("devices=config.devices", SRUN, {}, []),
        ('devices=int(os.environ["SLURM_GPUS_ON_NODE"])', SRUN, {}, MISMATCH),
        ('devices=int(os.environ["SLURM_GPUS_ON_NODE"])', SRUN, {"tasks": 4}, []),
        (
            'devices=2, num_nodes=int(os.environ["SLURM_NNODES"])',
            SRUN,
            {"tasks": 2, "nodes": 3},
            [],
        ),
        ('devices="auto", accelerator="gpu"', SRUN, {}, MISMATCH),
        ('devices="auto", accelerator=args.kind', SRUN, {}, []),
        ('devices=[0, 1], strategy="ddp"', SRUN, {}, MISMATCH),
        ('devices="0,1"', SRUN, {}, MISMATCH),
        ('devices="0,1"', SRUN, {"tasks": 2}, []),
        ("devices=4, **options", SRUN, {}, MISMATCH),
        ("**options", SRUN, {}, []),
        ("devices=4, plugins=[environment]", SRUN, {}, []),
        ("devices=4", SRUN, {"tasks": None, "more": "#SBATCH --ntasks=4\n"}, MISMATCH),
        ("devices=4", "python train.py", {"tasks": None, "more": "#SBATCH --ntasks=1\n"}, MISMATCH),
        ("devices=4", "python train.py", {"tasks": None}, []),
        ("devices=4", "python train.py", {"more": "#SBATCH --job-name=interactive\n"}, []),
        ("devices=1", "python train.py", {"gpus": 1}, []),
        ("devices=2", "torchrun --nproc_per_node=4 train.py", {}, ["error world-size-mismatch"]),
        ('devices="auto"', "torchrun --nproc_per_node=4 train.py", {}, []),
        ("devices=4", "torchrun --nproc_per_node=4 train.py", {}, []),
        ("devices=2", "torchrun --nproc_per_node=${N:-4} train.py", {}, []),
    ],
)
def test_lightning_is_told_what_the_job_starts(tmp_path, arguments, start, options, names):
    assert found(tmp_path, job(start, **options), LIGHTNING.format(arguments)) == names


@pytest.mark.parametrize(("nodes", "names"), [(1, []), (2, ["error invalid-device-ordinal"])])
def test_a_rank_that_has_a_name_selects_the_gpu(tmp_path, nodes, names):
    program = RAW.format(
        'dist.init_process_group("nccl")\nrank = dist.get_rank()\ntorch.cuda.set_device(rank)'
    )
    meet = "--rdzv_backend=c10d --rdzv_endpoint=$(hostname):29500"
    start = f"srun torchrun --nnodes={nodes} --nproc_per_node=4 {meet} train.py"
    assert found(tmp_path, job(start, nodes=nodes), program) == names


@pytest.mark.parametrize(("workers", "names"), [(4, []), (64, ["warning workers-exceed-cpus"])])
def test_workers_of_training_arguments_count(tmp_path, workers, names):
    program = f"from transformers import TrainingArguments\nargs = TrainingArguments('out', dataloader_num_workers={workers})\n"
    assert found(tmp_path, job("torchrun --nproc_per_node=4 train.py"), program) == names


def test_fabric_is_judged_as_the_trainer_is(tmp_path):
    program = "import lightning as L\nfabric = L.Fabric(accelerator='cuda', devices=4, num_nodes=1)\nfabric.launch()\n"
    assert found(tmp_path, job(SRUN), program) == MISMATCH
    assert found(tmp_path, job(SRUN, tasks=4), program) == []


@pytest.mark.parametrize(
    ("start", "call", "names"),
    [
        ("fabric run --devices=4", "fabric.launch()", ["error double-launch"]),
        ("fabric run --devices=4", "fabric.setup(model)", []),
        ("fabric run --devices=4", "engine.launch()", []),
        ("torchrun --nproc_per_node=4", "fabric.launch()", []),
    ],
)
def test_fabric_run_starts_no_script_that_launches(tmp_path, start, call, names):
    program = f"import lightning as L\nfabric = L.Fabric(devices=4)\n{call}\n"
    assert found(tmp_path, job(f"{start} train.py"), program) == names


def test_two_trainers_that_differ_are_not_judged(tmp_path):
    program = LIGHTNING.format("devices=4") + "L.Trainer(devices=1).test(model)\n"
    assert found(tmp_path, job(SRUN), program) == []


JOINS = 'dist.init_process_group("nccl")'
ADOPTS = "from accelerate import Accelerator\naccelerator = Accelerator()"
SPAWNS = "if __name__ == '__main__':\n    mp.spawn(main, nprocs=4)"
PORT = 'os.environ["MASTER_PORT"] = "12355"'
ADDRESS = 'def setup():\n    os.environ["MASTER_ADDR"] = "localhost"\nsetup()'
BY_RANK = "torch.cuda.set_device(dist.get_rank())"
C10D = "srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$(hostname):0 train.py"
ALONE = "torchrun --standalone --nproc_per_node=4 train.py"


@pytest.mark.parametrize(
    ("body", "start", "options", "names"),
    [
        (JOINS, SRUN, {"tasks": 4}, NO_RANK),
        (JOINS, "python train.py", {"gpus": 1}, NO_RANK),
        (JOINS, ALONE, {}, []),
        (JOINS, "source set_ranks.sh\nsrun python train.py", {"tasks": 4}, []),
        (JOINS, "srun bash -c 'export RANK=$SLURM_PROCID; python train.py'", {"tasks": 4}, []),
        (f"if args.distributed:\n    {JOINS}", SRUN, {"tasks": 4}, []),
        (f"from slurm_env import setup\n{JOINS}", SRUN, {"tasks": 4}, []),
        ('dist.init_process_group("nccl", rank=r, world_size=n)', SRUN, {"tasks": 4}, []),
        ('rank = int(os.environ["RANK"])', SRUN, {"tasks": 4}, NO_RANK),
        (f'os.environ.setdefault("RANK", "0")\n{JOINS}', SRUN, {"tasks": 4}, []),
        ('rank = int(os.environ.get("RANK", 0))', SRUN, {"tasks": 4}, []),
        (ADOPTS, SRUN, {"tasks": 4}, NO_RANK),
        (ADOPTS, SRUN, {"gpus": 1}, []),
        (ADOPTS, "srun accelerate launch --num_processes=4 train.py", {}, []),
        (SPAWNS, ALONE, {}, ["error double-launch"]),
        (SPAWNS, SRUN, {"tasks": 4}, ["error double-launch"]),
        (SPAWNS, "python train.py", {}, []),
        (f"if args.multi:\n    {SPAWNS.splitlines()[1].strip()}", ALONE, {}, []),
        ("DataLoader(data, num_workers=16)", ALONE, {"cpus": 32}, TOO_MANY),
        ("DataLoader(data, num_workers=8)", ALONE, {"cpus": 32}, []),
        ("DataLoader(data, num_workers=os.cpu_count())", ALONE, {"cpus": 32}, TOO_MANY),
        ("DataLoader(data, num_workers=len(os.sched_getaffinity(0)))", ALONE, {"cpus": 32}, []),
        ("DataLoader(data, num_workers=workers)", ALONE, {"cpus": 32}, []),
        (PORT, ALONE, {}, ["error master-unreachable"]),
        (PORT, "python train.py", {}, []),
        (
            PORT.replace("] = ", ", ").replace("environ[", "environ.setdefault(") + ")",
            ALONE,
            {},
            [],
        ),
        (ADDRESS, C10D, {"nodes": 2}, ["error master-addr-wrong"]),
        (ADDRESS, ALONE, {}, []),
        (BY_RANK, C10D, {"nodes": 2}, ["error invalid-device-ordinal"]),
        (BY_RANK, ALONE, {}, []),
        (BY_RANK.replace("()", "() % 4"), C10D, {"nodes": 2}, []),
    ],
)
def test_ranks_workers_and_addresses_fit_the_job(tmp_path, body, start, options, names):
    assert found(tmp_path, job(start, **options), RAW.format(body)) == names


def test_a_gpu_for_each_task_and_a_local_rank_do_not_go_together(tmp_path):
    body = 'local_rank = int(os.environ["SLURM_LOCALID"])\ntorch.cuda.set_device(local_rank)'
    start = job(SRUN, tasks=4)
    bound = start.replace("--gpus-per-node=4", "--gpus-per-task=1")
    assert found(tmp_path, start, RAW.format(body)) == []
    assert found(tmp_path, bound, RAW.format(body)) == ["error gpus-per-task-with-local-rank"]


@pytest.mark.parametrize(
    ("body", "start", "unread"),
    [
        ("workers = 8", SRUN, ["NUM_WORKERS"]),
        ("workers = 8", f"{SRUN} --workers $NUM_WORKERS", []),
        ("workers = 8", f"source env.sh\n{SRUN}", []),
        ("workers = 8", f"{SRUN}\nsrun python other.py", []),
        ("workers = int(os.environ['NUM_WORKERS'])", SRUN, []),
        ("settings = dict(os.environ)", SRUN, []),
        ("import subprocess", SRUN, []),
        ("from my_settings import workers", SRUN, []),
        ("import hydra", SRUN, []),
    ],
)
def test_an_exported_setting_that_only_the_script_could_read(tmp_path, body, start, unread):
    (tmp_path / "train.py").write_text(RAW.format(body))
    text = job(start, more="export NUM_WORKERS=8 MY_TOOL_LEVEL=2\n")
    (tmp_path / "job.sbatch").write_text(text)
    judged = lint([str(tmp_path / "job.sbatch")]).files[0].findings
    hints = [each.what.split()[2].rstrip(":") for each in judged if each.name == "variable-unknown"]
    assert hints == unread


def test_a_download_by_every_rank_is_a_hint(tmp_path):
    body = "from torchvision import datasets\ndata = datasets.MNIST('data', download=True)"
    (tmp_path / "train.py").write_text(RAW.format(body))
    (tmp_path / "job.sbatch").write_text(job(ALONE))
    findings = lint([str(tmp_path / "job.sbatch")]).files[0].findings
    assert [(f.severity, f.name) for f in findings] == [("hint", "download-on-every-rank")]
    (tmp_path / "train.py").write_text(
        RAW.format(body + "\nif rank == 0:\n    datasets.MNIST('data', download=True)")
    )
    assert lint([str(tmp_path / "job.sbatch")]).files[0].findings == ()


# where the script is


@pytest.mark.parametrize(
    ("start", "name"),
    [
        (SRUN, "train.py"),
        ("srun python src/train.py", "src/train.py"),
        ("cd src\nsrun python train.py", "src/train.py"),
        ("cd $HOME/project/src\nsrun python train.py", "src/train.py"),
        ("cd /home/me/project\nsrun python train.py", "train.py"),
        ("srun python -m tools.train", "tools/train.py"),
        ("srun python ${PROJECT}/src/train.py", "src/train.py"),
        ("SCRIPT=train.py\nsrun python $SCRIPT", "train.py"),
        ("srun bash -c 'cd src && python train.py'", "src/train.py"),
        ("srun python /home/me/project/src/train.py", "src/train.py"),
    ],
)
def test_the_script_is_found(tmp_path, start, name):
    assert found(tmp_path, job(start), LIGHTNING.format("devices=2"), name=name) == MISMATCH


@pytest.mark.parametrize(
    "start",
    [
        "srun python $SCRIPT",
        "srun python other.py",
        "srun python /opt/other/train.py",
        "srun python -m train.main",
    ],
)
def test_what_is_not_there_is_not_judged(tmp_path, start):
    assert found(tmp_path, job(start), LIGHTNING.format("devices=2")) == []


def test_a_script_is_found_above_the_folder_of_the_job(tmp_path, monkeypatch):
    (tmp_path / "project" / "jobs").mkdir(parents=True)
    (tmp_path / "project" / "train.py").write_text(LIGHTNING.format("devices=2"))
    (tmp_path / "project" / "jobs" / "a.sbatch").write_text(job(SRUN))
    assert [f.name for f in lint([str(tmp_path / "project" / "jobs" / "a.sbatch")]).findings] == [
        "slurm-ntasks-mismatch"
    ]
    monkeypatch.chdir(tmp_path / "project")
    assert [f.name for f in lint(["jobs/a.sbatch"]).findings] == ["slurm-ntasks-mismatch"]


def test_of_two_files_of_the_name_none_is_taken_unless_one_is_given(tmp_path, monkeypatch):
    for folder, devices in (("jobs", 2), (".", 1)):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "train.py").write_text(LIGHTNING.format(f"devices={devices}"))
    (tmp_path / "jobs" / "a.sbatch").write_text(job(SRUN))
    monkeypatch.chdir(tmp_path)
    assert lint(["jobs/a.sbatch"]).findings == []
    assert [f.name for f in lint(["jobs/a.sbatch", "jobs/train.py"]).findings] == [
        "slurm-ntasks-mismatch"
    ]


def test_a_script_of_the_name_in_a_folder_that_is_not_the_jobs_is_left_alone(tmp_path, monkeypatch):
    for folder in ("jobs", "src"):
        (tmp_path / folder).mkdir()
    (tmp_path / "src" / "train.py").write_text(LIGHTNING.format("devices=2"))
    (tmp_path / "jobs" / "a.sbatch").write_text(job(SRUN))
    monkeypatch.chdir(tmp_path / "src")
    assert (
        lint(["../jobs/a.sbatch"]).findings
        == lint([str(tmp_path / "jobs" / "a.sbatch")]).findings
        == []
    )


def test_the_finding_shows_the_line_of_the_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found(Path(), job(SRUN), LIGHTNING.format("devices=2"))
    finding = lint(["job.sbatch"]).findings[0]
    assert finding.where == "job.sbatch:3"
    assert finding.evidence[-1] == "train.py:9: trainer = L.Trainer(devices=2)"


def test_the_script_is_judged_too_and_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loop = "for epoch in range(3):\n    for x in loader:\n        loss.backward()\n"
    body = f"sampler = torch.utils.data.DistributedSampler(data)\nloader = DataLoader(data, sampler=sampler)\n{loop}"
    found(Path(), job(ALONE), RAW.format(body))
    Path("second.sbatch").write_text(job(ALONE))
    report = lint(["job.sbatch", "second.sbatch"])
    assert [(judged.name, [f.name for f in judged.findings]) for judged in report.files] == [
        ("job.sbatch", []),
        ("second.sbatch", []),
        ("train.py", ["set-epoch-missing"]),
    ]
    assert [judged.name for judged in lint(["train.py", "job.sbatch"]).files] == [
        "train.py",
        "job.sbatch",
    ]
    assert json.loads(json.dumps(report.to_json()))["findings"][0]["where"] == "train.py:7"


def test_a_finding_of_both_is_ignored_in_the_job(tmp_path):
    text = job(SRUN).replace(
        "#SBATCH --ntasks", "# paceline: ignore slurm-ntasks-mismatch\n#SBATCH --ntasks"
    )
    assert found(tmp_path, text, LIGHTNING.format("devices=2")) == []


@pytest.mark.parametrize("text", ["not python (", "", "\0"])
def test_a_script_that_cannot_be_read_does_not_matter_to_the_job(tmp_path, text):
    assert found(tmp_path, job(SRUN), text) == []
