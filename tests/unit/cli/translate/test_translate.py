"""Lines of other launchers as lines of paceline run: what comes out, and that it can be pasted."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from paceline.cli import main as cli
from paceline.cli.translate import translate
from paceline.diagnose.lint.job.launcher_options import PACELINE
from paceline.errors import UsageError
from paceline.launch.plan import parsing
from paceline.launch.plan.options import OPTIONS
from printed_json import read_json
from refusals import refusal

FSDP = """{"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}, "mixed_precision": "bf16",
"num_processes": 8, "num_machines": 2, "main_process_ip": "head"}"""


ZERO3 = """{"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3}, "num_processes": 4}"""


@pytest.fixture(autouse=True)
def no_default_configuration(asked_here, monkeypatch, tmp_path):
    """What this machine's user has configured does not count."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("PET_NPROC_PER_NODE", raising=False)
    monkeypatch.chdir(tmp_path)


def flat(line):
    return line.line.replace(" \\\n   ", "")


def translated(text):
    return translate(shlex.split(text))


# ---------------------------------------------------------------------------------------------- launchers


LINES = """
$ torchrun train.py
paceline run --nproc-per-node 1 train.py
$ torchrun --nproc_per_node=gpu train.py --lr 1
paceline run --nproc-per-node gpu train.py --lr 1
$ torchrun --nnode=2 --nproc 4 t.py
paceline run --nnodes 2 --nproc-per-node 4 t.py
$ torchrun --nproc-per-node 2 -t 3 -m pkg.train -x
paceline run --nproc-per-node 2 --tee 3 -m pkg.train -x
$ torchrun --no_python --nproc-per-node 2 ./p
paceline run --no-python --nproc-per-node 2 ./p
$ python -u -m torch.distributed.run --nproc-per-node 2 t.py
paceline run --nproc-per-node 2 t.py
$ /e/bin/python3 -m torch.distributed.run --nproc-per-node 2 t.py
/e/bin/python3 -m paceline run --nproc-per-node 2 t.py
$ /e/bin/torchrun --nproc-per-node 2 t.py
/e/bin/paceline run --nproc-per-node 2 t.py
$ PET_NPROC_PER_NODE=2 torchrun t.py
PET_NPROC_PER_NODE=2 paceline run t.py
$ env PET_NPROC_PER_NODE=2 torchrun t.py
env PET_NPROC_PER_NODE=2 paceline run t.py
$ srun -N2 --ntasks-per-node=1 torchrun --nnodes 2 --nproc-per-node 4 t.py
srun -N2 --ntasks-per-node=1 paceline run --nproc-per-node 4 t.py
$ srun torchrun --nnodes 2 --rdzv-id 7 --rdzv-backend c10d --rdzv-endpoint h:1 --rdzv-conf timeout=9 t.py
srun paceline run --nproc-per-node 1 t.py
$ srun -N1 torchrun --nnodes 2 --nproc-per-node 4 --node-rank 0 --master-addr h t.py
srun -N1 paceline run --nnodes 2 --nproc-per-node 4 --node-rank 0 --master-addr h t.py
$ srun torchrun --nnodes 2 --nproc-per-node 4 --node-rank 1 --master-addr h t.py
srun paceline run --nnodes 2 --nproc-per-node 4 --node-rank 1 --master-addr h t.py
$ srun torchrun --nnodes 1:2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint h t.py
srun paceline run --nnodes 1:2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint h t.py
$ mpirun -np 2 torchrun --nnodes 2 --nproc-per-node 4 --node-rank 0 --master-addr h t.py
mpirun -np 2 paceline run --nproc-per-node 4 t.py
$ srun accelerate launch --multi_gpu --num_machines 2 --num_processes 8 t.py
srun paceline run --nproc-per-node 4 t.py
$ srun fabric run --num-nodes=2 t.py
srun env LT_CLI_USED=1 LT_DEVICES=1 LT_NUM_NODES=2 paceline run --nproc-per-node 1 t.py
$ srun deepspeed --no_ssh --num_nodes 2 --num_gpus 4 t.py
srun paceline run --nproc-per-node 4 t.py
$ uv run torchrun --nproc-per-node 2 t.py
uv run paceline run --nproc-per-node 2 t.py
$ accelerate launch t.py
paceline run t.py
$ accelerate launch --mixed_precision bf16 --num_processes 4 t.py
ACCELERATE_MIXED_PRECISION=bf16 paceline run --nproc-per-node 4 t.py
$ accelerate launch --mixed_precision no -m pkg.t
ACCELERATE_MIXED_PRECISION=no paceline run -m pkg.t
$ python -m accelerate.commands.launch --num-processes 2 t.py
paceline run --nproc-per-node 2 t.py
$ accelerate-launch --gpu_ids 1,3 --num_processes 2 t.py
CUDA_VISIBLE_DEVICES=1,3 paceline run --nproc-per-node 2 t.py
$ accelerate launch --dynamo_backend inductor --max_restarts 3 t.py
ACCELERATE_DYNAMO_BACKEND=INDUCTOR ACCELERATE_DYNAMO_MODE=default ACCELERATE_DYNAMO_USE_FULLGRAPH=False
ACCELERATE_DYNAMO_USE_DYNAMIC=False ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=False paceline run --max-restarts 3
t.py
$ srun accelerate launch --mixed_precision fp16 t.py
srun env ACCELERATE_MIXED_PRECISION=fp16 paceline run t.py
$ A=1 nohup env B=2 accelerate launch --mixed_precision fp16 t.py
A=1 nohup env B=2 ACCELERATE_MIXED_PRECISION=fp16 paceline run t.py
$ accelerate launch --multi_gpu --num_machines 2 --num_processes 8 --machine_rank 1 --main_process_ip h t.py
paceline run --nproc-per-node 4 --nnodes 2 --node-rank 1 --master-addr h --master-port 29500 t.py
$ accelerate launch --num_machines 2 --num_processes 8 --rdzv_backend c10d --main_process_ip h t.py
paceline run --nproc-per-node 4 --nnodes 2 --rdzv-backend c10d --rdzv-endpoint h:29500 t.py
$ fabric run --precision 16-mixed --devices 4 t.py
LT_CLI_USED=1 LT_DEVICES=4 LT_NUM_NODES=1 LT_PRECISION=16-mixed paceline run --nproc-per-node 4 t.py
$ fabric run t.py --devices=0,1 --lr 3 -- --devices 7
LT_CLI_USED=1 LT_DEVICES=0,1 LT_NUM_NODES=1 paceline run --nproc-per-node 2 t.py --lr 3 --devices 7
$ lightning run model --strategy dp --devices 4 t.py
LT_CLI_USED=1 LT_STRATEGY=dp LT_DEVICES=4 LT_NUM_NODES=1 paceline run --nproc-per-node 1 t.py
$ fabric run --devices -1 --num-nodes 2 --node-rank 1 --main-address h t.py
LT_CLI_USED=1 LT_DEVICES=-1 LT_NUM_NODES=2 paceline run --nproc-per-node gpu --nnodes 2 --node-rank 1 --master-addr
h --master-port 29400 t.py
$ deepspeed t.py --deepspeed ds.json
paceline run t.py --deepspeed ds.json
$ deepspeed --num_gpus=2 --master_port 29501 t.py
paceline run --nproc-per-node 2 --master-port 29501 t.py
$ deepspeed --include localhost:1,3 --module pkg.t
CUDA_VISIBLE_DEVICES=1,3 paceline run --nproc-per-node 2 -m pkg.t
$ deepspeed --no_ssh --num_nodes 2 --node_rank 1 --master_addr h --num_gpus 4 t.py
paceline run --nproc-per-node 4 --nnodes 2 --node-rank 1 --master-addr h --master-port 29500 t.py
$ deepspeed --enable_each_rank_log out --no_local_rank t.py
paceline run --log-dir out --redirects 3 t.py
$ paceline run --nproc-per-node 2 t.py
paceline run --nproc-per-node 2 t.py
"""


@pytest.mark.parametrize(
    "pair", LINES.strip().removeprefix("$ ").split("\n$ "), ids=lambda pair: pair.split("\n")[0]
)
def test_a_line_of_another_launcher(pair):
    typed, _, expected = pair.partition("\n")
    line = translated(typed)
    assert flat(line) == " ".join(expected.splitlines())
    accepted(flat(line))


def accepted(line):
    """paceline run takes the options that a line has."""
    words = shlex.split(line)
    words = words[
        words.index("run", words.index("run") + 1 if words[:2] == ["uv", "run"] else 0) + 1 :
    ]
    known = {option.name for option in OPTIONS}
    typed = {}
    while words[0].startswith("-"):
        word = words.pop(0)
        name = "module" if word == "-m" else PACELINE.find(word.removeprefix("--"))
        assert name in known, line
        typed[name] = True if name in PACELINE.flags else words.pop(0)
    parsing.parse(words[0], (), typed=typed, inherited={})


@pytest.mark.parametrize(
    ("typed", "note"),
    [
        ("torchrun --nproc-per-node 2 --start-method spawn t.py", "--start-method has no effect"),
        (
            "torchrun --rdzv-backend c10d --rdzv-endpoint h:1 --node-rank 1 --nproc-per-node 1 t.py",
            "--node-rank has no",
        ),
        ("torchrun --standalone --rdzv-id 7 --nproc-per-node 1 t.py", "--rdzv-id has no effect"),
        ("python -m torch.distributed.launch --nproc_per_node 2 t.py", "passes --local_rank"),
        ("deepspeed t.py", "passes --local_rank"),
        ("deepspeed --hostfile hosts --exclude n1 t.py", "start this on each node"),
        ("deepspeed --autotuning tune t.py", "--autotuning has no counterpart"),
        ("deepspeed --include a@b:0 t.py", "names several nodes"),
        ("accelerate launch --cpu --num_processes 2 t.py", "starts one process on CPUs"),
        ("accelerate launch --multi_gpu --num_machines 2 --num_processes 4 t.py", "for HEAD"),
        (
            "accelerate launch --use_deepspeed --deepspeed_hostfile h t.py",
            "no node is reached through ssh",
        ),
        ("fabric run --num-nodes 2 t.py", "for HEAD"),
    ],
)
def test_what_has_no_counterpart_is_said(typed, note):
    assert any(note in each for each in translated(typed).notes)


@pytest.mark.parametrize(("call", "sets"), [("fabric.launch(main)", False), ("main(fabric)", True)])
def test_a_fabric_script_with_launch_is_not_told_that_fabric_run_started_it(call, sets):
    Path("t.py").write_text(f"fabric = Fabric()\n{call}\n")
    assert ("LT_CLI_USED" in translated("fabric run t.py").environment) == sets


def test_what_is_said_to_have_no_effect_is_left_out():
    line = translated("torchrun --standalone --rdzv-id 7 --node-rank 3 --nproc-per-node 1 t.py")
    assert flat(line) == "paceline run --standalone --nproc-per-node 1 t.py"


@pytest.mark.parametrize("typed", ["torchrun -m --use-env t.py", "deepspeed --no_local_rank t.py"])
def test_a_script_that_is_passed_no_local_rank_is_not_spoken_of(typed):
    assert translated(typed).notes == ()


# ---------------------------------------------------------------------------------------- configurations


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("", "paceline run --accelerate-config {} t.py"),
        ("--machine_rank 1", "paceline run --accelerate-config {} --nnodes 2 --node-rank 1 --master-addr head "
         "--master-port 29500 t.py"),
        ("--num_machines 1", "paceline run --accelerate-config {} --nproc-per-node 8 --nnodes 1 t.py"),
    ],
)  # fmt: skip
def test_a_configuration_that_says_it_all_is_named(typed, expected, tmp_path):
    (tmp_path / "c.yaml").write_text(FSDP)
    assert flat(
        translated(f"accelerate launch --config_file c.yaml {typed} t.py")
    ) == expected.format("c.yaml")


def test_a_configuration_of_which_the_line_says_otherwise_is_spelled_out(tmp_path):
    (tmp_path / "c.yaml").write_text(FSDP)
    line = translated("accelerate launch --config_file c.yaml --mixed_precision no t.py")
    assert "accelerate-config" not in line.line
    assert line.environment["ACCELERATE_MIXED_PRECISION"] == "no"
    assert line.environment["FSDP_VERSION"] == "2"


def test_a_configuration_that_only_the_line_completes_is_spelled_out(tmp_path):
    (tmp_path / "c.yaml").write_text(
        "{distributed_type: MULTI_GPU, num_processes: 2, gpu_ids: '0'}"
    )
    line = translated("accelerate launch --config_file c.yaml --gpu_ids 0,1 t.py")
    assert line.environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert line.line.endswith("paceline run --nproc-per-node 2 t.py")


def test_the_default_configuration_counts(tmp_path):
    path = tmp_path / "hf" / "accelerate" / "default_config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(
        '{"distributed_type": "MULTI_GPU", "mixed_precision": "bf16", "num_processes": 4}'
    )
    assert (
        flat(translated("accelerate launch t.py"))
        == f"paceline run --accelerate-config {path} t.py"
    )
    assert "USE_CPU=True" in translated("accelerate launch --cpu t.py").line


def test_modules_in_the_working_folder_are_found_with_deepspeed():
    assert (
        'PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$PWD"'
        in translated("accelerate launch --use_deepspeed t.py").line
    )


# ------------------------------------------------------------------------------------------------ quoting


@pytest.mark.parametrize(
    "argument",
    ["a b", "it's", "$HOME", "`id`", "*", "", 'say "hi"', "a\\b", "ä", "line\nend", "!x"],
)
def test_a_line_that_is_pasted_hands_on_what_was_typed(argument):
    line = translate(
        ["accelerate", "launch", "--mixed_precision", "bf16", "t.py", argument, f"--x={argument}"]
    )
    pasted = f'paceline() {{ printf \'%s\\0\' "$ACCELERATE_MIXED_PRECISION" "$@"; }}\n{line.line}'
    ended = subprocess.run(["bash", "-c", pasted], capture_output=True, check=True, timeout=20)
    assert ended.stdout.decode().split("\0")[:-1] == [
        "bf16",
        "run",
        "t.py",
        argument,
        f"--x={argument}",
    ]


def test_a_long_line_is_one_command():
    line = translate(
        ["accelerate", "launch", "--use_fsdp", "--num_processes", "2", "t.py", "a" * 90, "b"]
    )
    assert len(line.line.splitlines()) > 3
    pasted = f'paceline() {{ printf \'%s\\0\' "$FSDP_VERSION" "$@"; }}\n{line.line}'
    ended = subprocess.run(
        ["bash", "-c", pasted], capture_output=True, check=True, timeout=20, text=True
    )
    assert ended.stdout.split("\0") == [
        "1",
        "run",
        "--nproc-per-node",
        "2",
        "t.py",
        "a" * 90,
        "b",
        "",
    ]


def test_variables_of_a_line_in_quotes_stay_variables():
    text = """torchrun --nnodes $N --nproc-per-node 2 --node-rank ${SLURM_NODEID} \\
        t.py --out "$DIR/a b" --cost '5 EUR'"""
    assert flat(translate([text])) == (
        'paceline run --nnodes "$N" --nproc-per-node 2 --node-rank "${SLURM_NODEID}" '
        "t.py --out \"$DIR/a b\" --cost '5 EUR'"
    )


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (
            'accelerate launch --num_machines $N --num_processes $((N*8)) --main_process_ip "$(hostname -i)" t.py $X',
            'paceline run --nnodes "$N" --node-rank 0 --master-addr "$(hostname -i)" --master-port 29500 t.py "$X"',
        ),
        (
            "accelerate launch --num_processes ${G:-2} t.py",
            'paceline run --nproc-per-node "${G:-2}" t.py',
        ),
        (
            "fabric run --devices $G --precision=$P t.py",
            'LT_CLI_USED=1 LT_DEVICES="$G" LT_NUM_NODES=1 LT_PRECISION="$P" paceline run --nproc-per-node "$G" t.py',
        ),
    ],
)
def test_numbers_that_are_variables_are_kept(typed, expected):
    line = translate([typed])
    assert flat(line) == expected
    assert ("counts all nodes" in "".join(line.notes)) == ("$((" in typed)


# As they stand in public job scripts and documentation, with other names; the lines that come out were read once.
PUBLIC = r"""
$ ACCELERATE_LOG_LEVEL=info accelerate launch --config_file zero3.yaml scripts/run_sft.py configs/sft.yaml
ACCELERATE_LOG_LEVEL=info paceline run --accelerate-config zero3.yaml scripts/run_sft.py configs/sft.yaml
$ accelerate launch --config_file $config_file $ROOT/src/run.py --resume ${resume:-""} --layers ${layers}
paceline run --accelerate-config "$config_file" "$ROOT/src/run.py" --resume "${resume:-}" --layers "${layers}"
$ CUDA_VISIBLE_DEVICES=0,1 accelerate launch --config_file zero3.yaml --num_processes $N --main_process_port $PORT a.py
CUDA_VISIBLE_DEVICES=0,1 paceline run --accelerate-config zero3.yaml --nproc-per-node "$N" --master-port "$PORT"
a.py
$ accelerate launch --num_machines=1 --num_processes=2 --machine_rank=0 train.py config=a.yaml experiment.name="x"
paceline run --nproc-per-node 2 train.py config=a.yaml experiment.name=x
$ WANDB_MODE=offline accelerate launch --num_machines=${W} --num_processes=${N} --same_network --machine_rank=${RANK} \
  --main_process_ip=${MASTER_ADDR} --main_process_port=${MASTER_PORT} train_ar.py config=b.yaml
WANDB_MODE=offline paceline run --nnodes "${W}" --node-rank "${RANK}" --master-addr "${MASTER_ADDR}"
--master-port "${MASTER_PORT}" train_ar.py config=b.yaml
$ accelerate launch --num_machines=1 --num_processes=1 --gpu_ids=6 --main_process_port=36730 --dynamo_backend="no" \
  --mixed_precision="bf16" lora.py --resolution=256 --random_flip
ACCELERATE_MIXED_PRECISION=bf16 CUDA_VISIBLE_DEVICES=6 paceline run --nproc-per-node 1 --master-port 36730 lora.py
--resolution=256 --random_flip
$ deepspeed --num_gpus 1 --num_nodes 2 --hostfile $H --no_ssh --node_rank=$R --master_addr $M --master_port=12345 g.py
paceline run --nproc-per-node 1 --nnodes 2 --node-rank "$R" --master-addr "$M" --master-port 12345 g.py
$ torchrun --nnodes=1 --nproc_per_node="${n}" --rdzv_id="${j}" --rdzv_backend=c10d --rdzv_endpoint=localhost:1238 a.py
paceline run --nnodes 1 --nproc-per-node "${n}" --rdzv-id "${j}" --rdzv-backend c10d --rdzv-endpoint localhost:1238
a.py
$ fabric run model train.py --config_path c.yaml --devices=8 --accelerator=cuda --precision="bf16-true" --main-port=524
LT_CLI_USED=1 LT_ACCELERATOR=cuda LT_DEVICES=8 LT_NUM_NODES=1 LT_PRECISION=bf16-true paceline run --nproc-per-node 8
--master-port 524 train.py --config_path c.yaml
"""


@pytest.mark.parametrize(
    "pair", PUBLIC.strip().removeprefix("$ ").split("\n$ "), ids=lambda pair: pair[:40]
)
def test_a_line_from_public_material(pair, tmp_path):
    (tmp_path / "zero3.yaml").write_text(ZERO3)
    typed, expected = pair.replace("\\\n", "").split("\n", 1)
    assert flat(translate([typed])) == " ".join(expected.splitlines())


def test_a_configuration_that_is_not_known_cannot_be_added_to():
    with pytest.raises(UsageError, match="content is not known"):
        translate(["accelerate launch --config_file $C --mixed_precision bf16 t.py"])


# ---------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("typed", "name", "what"),
    [
        ("python train.py", "option-invalid", "without a launcher"),
        ("srun -n 8 python train.py", "option-invalid", "srun starts every rank"),
        ("composer -n 2 train.py", "option-invalid", "composer"),
        ("ls -l", "option-invalid", "ls is not a launcher"),
        ("bash -c 'torchrun train.py'", "option-invalid", "another script"),
        ("torchrun", "option-invalid", "no script"),
        ("A=1", "option-invalid", "no command is given"),
        ("torchrun --foo 1 train.py", "option-unknown", "--foo"),
        ("accelerate launch --fsdp_colour red train.py", "option-unknown", "fsdp_colour"),
        ("accelerate launch --tpu train.py", "option-invalid", "TPU"),
        ("accelerate launch --config_file none.yaml train.py", "input-unreadable", "No such file"),
        ("accelerate launch --mixed_precision half train.py", "option-invalid", "half"),
    ],
)
def test_what_cannot_be_translated_is_refused(typed, name, what):
    finding = refusal(UsageError, translated, typed)
    assert finding.name == name
    assert what in finding.what
    assert finding.fix


@pytest.mark.parametrize(
    "line",
    [
        "torchrun a.py && torchrun b.py",
        "torchrun a.py > log",
        "torchrun 'a.py x",
        "torchrun --nnodes $((1 + 1)) t.py",
    ],
)
def test_a_line_in_quotes_that_is_not_one_command_is_refused(line):
    with pytest.raises(UsageError):
        translate([line])


# --------------------------------------------------------------------------------------------- the command


def run(capsys, *words):
    deed = cli.cli.main(["translate", *words], standalone_mode=False)
    assert deed() == 0
    return capsys.readouterr()


def test_the_line_is_on_stdout_and_notes_are_on_stderr(capsys):
    out, err = run(capsys, "deepspeed", "--num_gpus", "2", "t.py", "--json")
    assert out == "paceline run --nproc-per-node 2 t.py --json\n"
    assert err.startswith("note: deepspeed passes --local_rank")


def test_the_same_as_data(capsys):
    told = read_json("translate", run(capsys, "--json", "--", "fabric", "run", "t.py").out)
    assert told["environment"] == {"LT_CLI_USED": "1", "LT_DEVICES": "1", "LT_NUM_NODES": "1"}
    assert told["line"].endswith("paceline run --nproc-per-node 1 t.py")
    assert told["notes"] == ["leave LT_CLI_USED=1 out if the script calls fabric.launch()"]
