"""Numbers of nodes and tasks that a job script and its launchers take from each other, beside scripts that resemble the wrong ones."""

import pytest

from paceline.diagnose.lint.job import judge

HEAD = "#!/bin/bash\n#SBATCH --nodes={} --ntasks-per-node={} --gpus-per-node=4 --cpus-per-task=8 --mem=0 --time=60\n"
TWO, TASKS, ONE, FOUR = HEAD.format(2, 1), HEAD.format(2, 4), HEAD.format(1, 1), HEAD.format(1, 4)
MEET = "--rdzv_backend=c10d --rdzv_endpoint=localhost:29500 train.py\n"
RUN = "srun torchrun --nnodes=$NODES --nproc_per_node=4 " + MEET
ADDRESS = "export MASTER_ADDR=$(hostname) MASTER_PORT=29500 WORLD_SIZE=8\n"
RANK = ADDRESS + "export RANK=$SLURM_PROCID\n"
AGENTS = "torchrun --nnodes=4 --nproc_per_node=1 " + MEET
BOTH = "torchrun --standalone --nproc_per_node=4 {0} train.py {0}\n"
TRAP, STEP = "trap 'touch stop' USR1\n", "srun python train.py\n"
USR1 = ONE + "#SBATCH --signal=USR1@90\n"
PREPARE = "python prepare_data.py\n"
ITS_OPTIONS = "--log-dir logs|--role x --tee 3|--max-restarts=3|-r 3 -t 3|--no-python|--signals-to-handle=SIGUSR1|$OPTIONS|--local-addr 1.2.3.4|--virtual-local-rank|--max-rest 3"
KNOWN_TO_IT = {text: BOTH.format(text) for text in ITS_OPTIONS.split("|")}
MAY_SPREAD = 'bash run_nodes.sh|./run_nodes.sh|make train|"$@"|snakemake --slurm|sbatch next.sbatch|apptainer exec --nv a.sif bash run.sh|source launch.sh|$LAUNCHER python train.py'
PREPARED = {text: f"{PREPARE}{text}\n" for text in MAY_SPREAD.split("|")}
# Each rule: its name, severities and beginning; the wrong scripts, the right ones, and right ones that resemble the wrong ones most.
RULES = [
    ("unset-variable", ("warning",), TWO, {
        "computed": "export WORLD_SIZE=$(($N_NODES * 4))\n" + STEP, "argument": 'srun python train.py --n "$NUM_NODES"\n', "another name": RUN.replace("NODES", "NNODES"), "torchrun": RUN,
        "srun": "srun -N ${NODES} python train.py\n"}, {
        "options": "while getopts n: o; do case $o in n) NODES=$OPTARG;; esac; done\n" + RUN, "on the node": "srun bash -c 'NODES=2; python train.py --n $NODES'\n", "set": "NODES=2\n" + RUN,
        "tested": 'if [ -z "$NODES" ]; then NODES=2; fi\n' + RUN, "exported": "export NODES=$SLURM_NNODES\n" + RUN, "default": RUN.replace("$NODES", "${NODES:-2}"),
        "default by a colon": ": ${NODES:=2}\n" + RUN, "declared": "declare -i NODES=2\n" + RUN, "comment": STEP.strip() + "  # $NODES\n", "required": ': "${NODES?}"\n' + RUN,
        "sourced": "source env.sh\n" + RUN}, {
        "given if wanted": 'if [ -n "$NODES" ]; then srun -N 2 python train.py; else srun python train.py; fi\n', "loop": "for NODES in 1 2; do\nsrun -N $NODES python train.py\ndone\n",
        "mapfile": "mapfile -t NODES < <(scontrol show hostnames)\nsrun -w $NODES python train.py\n", "--export": "#SBATCH --export=ALL,NODES=2\n" + RUN, "arithmetic": "((NODES = 2))\n" + RUN,
        "awk": "sinfo | awk '{print $NODES}'\n" + STEP, "printf": "printf -v NODES '%d' 2\n" + RUN,
        "let": "let NODES=SLURM_NNODES\n" + RUN, "counted": "NODES=0\nfor h in $(scontrol show hostnames); do ((NODES++)); done\n" + RUN, "quoted": 'declare "NODES=$SLURM_NNODES"\n' + RUN,
        "counting loop": "for ((NODES=1; NODES<=2; NODES++)); do\nsrun -N $NODES python train.py\ndone\n"}),
    ("node-rank-on-batch-host", ("error",), "", {
        "per node": TASKS + RANK + "srun --ntasks-per-node=$GPUS python train.py\n", "-n": TASKS + RANK + "srun -n $N python train.py\n", "tasks": TASKS + RANK + STEP}, {
        "loop": TASKS + ADDRESS + "for i in 0 1; do RANK=$i srun -n 1 python train.py & done\nwait\n", "node": TASKS + ADDRESS + "srun bash -c 'export RANK=$SLURM_PROCID; python train.py'\n",
        "array": ONE + "#SBATCH --array=0-7\n" + RANK.replace("PROCID", "ARRAY_TASK_ID") + STEP, "escaped": TASKS + ADDRESS + 'srun bash -c "RANK=\\$SLURM_PROCID python train.py"\n',
        "torchrun": TWO + RANK + "srun torchrun --nnodes=2 --nproc_per_node=4 " + MEET, "of one": ONE + RANK + "srun -n $N python train.py\n", "unset": TASKS + RANK + "unset RANK\n" + STEP,
        "alone": TASKS + "export RANK=$SLURM_PROCID\n" + STEP, "step": TASKS + RANK + "srun -n 1 python train.py\n", "one task": ONE + RANK + STEP}, {}),
    ("torchrun-nnodes-mismatch", ("error",), "", {
        "variable": FOUR + "srun " + AGENTS.replace("=4", "=$SLURM_NTASKS"), "-n": ONE + "srun -n 4 " + AGENTS, "tasks": FOUR + "srun " + AGENTS}, {
        "one GPU each on two nodes": HEAD.format(2, 2).replace("gpus-per-node=4", "gpus-per-task=1") + "srun " + AGENTS, "variable": TWO + "srun " + AGENTS.replace("=4", "=$SLURM_NNODES"),
        "standalone": ONE + "srun torchrun --standalone train.py\n", "elastic": FOUR + "srun " + AGENTS.replace("=4", "=1:4"), "range": TWO + "srun " + AGENTS.replace("=4", "=1:2"),
        "nodes": TWO + "srun " + AGENTS.replace("=4", "=2")}, {
        "selected": FOUR + f"srun bash -c 'CUDA_VISIBLE_DEVICES=$SLURM_LOCALID {AGENTS.strip()}'\n", "one GPU each": FOUR.replace("gpus-per-node=4", "gpus-per-task=1") + "srun " + AGENTS,
        "CPU": FOUR.replace("--gpus-per-node=4 ", "") + "srun " + AGENTS, "bound": FOUR + "srun --gpu-bind=single:1 " + AGENTS}),
    ("option-unknown", ("warning",), ONE, {
        "accelerate": BOTH.format("--learning_rate 1").replace("torchrun --standalone --nproc_per_node=4", "accelerate launch --num_processes 4"), "value": BOTH.format("--batch-size 32"),
        "flag": BOTH.format("--fp16")}, {
        "newer": BOTH.format("--frobnicate=1").replace("train.py --frobnicate=1", "train.py"), "script's": BOTH.format("").replace("train.py", "train.py --batch-size 32"), **KNOWN_TO_IT}, {}),
    ("option-invalid", ("error",), "#!/bin/bash\n", {
        "name": "#SBATCH --job-name=$(basename $PWD)\n" + STEP, "tasks": "#SBATCH --ntasks=$(wc -l < hosts)\n" + STEP, "arithmetic": "#SBATCH --ntasks=$((2 * 4))\n" + STEP}, {
        "written": "cat > a.sh <<EOF\n#SBATCH --ntasks=$(wc -l < hosts)\nEOF\nsbatch a.sh\n", "step": "#SBATCH -n 4\nsrun --ntasks=$(nproc --all) python train.py\n",
        "quoted": '#SBATCH --comment="with $(nproc --all)"\n' + STEP, "submitted": "sbatch --ntasks=$(nproc --all) job.sbatch\n", "echo": 'echo "#SBATCH --ntasks=$(nproc --all)" >> a.sh\n',
        "commented": "##SBATCH --ntasks=$(nproc --all)\n" + STEP, "behind": "#SBATCH --ntasks=4 # $(nproc --all)\n" + STEP, "comment": "# #SBATCH --ntasks=$(nproc --all)\n" + STEP,
        "two": "#SBATCH -n 4 -c 2\n" + STEP}, {
        "here-document": "sbatch <<EOF\n#!/bin/bash\n#SBATCH --ntasks=$(wc -l < hosts)\nsrun python train.py\nEOF\n", "backquotes": "sbatch <<EOF\n#!/bin/bash\n#SBATCH --job-name=`basename $PWD`\nsrun python train.py\nEOF\n",
        "nested": "sbatch <<EOF\n#!/bin/bash\n#SBATCH --array=1-$(echo $(wc -l < hosts))%4\nsrun python train.py\nEOF\n"}),
    ("option-invalid", ("error",), ONE, {
        "account": "#SBATCH --account=<your-account>\n" + STEP, "folder": "cd /work/<project>/code\n" + STEP, "argument": "srun python train.py --data=<path> > log\n",
        "exported": "export HF_HOME=/x/<user>/hf\n" + STEP}, {
        "redirected": "sort <in.txt >out.txt\n" + STEP, "of a folder": "sort --key=1 </in/x>out\n" + STEP, "words": "cat <<<$A>out\n" + STEP, "substituted": "diff /x/a <(sort b)>c\n" + STEP,
        "quoted": "echo 'sbatch /x/<file>' \"--a=<b>\"\n" + STEP, "comment": "# cd /x/<project>\n#SBATCH --comment=<x> # <y>\ncd /x # /<z>\n" + STEP,
        "usage": "cat <<EOF\n/x/<file>\nEOF\n" + STEP}, {
        "regular expression": "sed s/<[^>]*>//g a\n" + STEP}),
    ("missing-srun", ("error",), TWO, {
        "training": "python train.py\n", "by path": "python src/train_net.py\n", "module": "python -m project.train\n"}, {
        "evaluation": "python eval.py --ddp\n", "generation": "python generate_samples.py\n", "test": "python test.py\n",
        "module": "python -m torch.utils.collect_env\nbash run.sh\n", "port": "PORT=$(python get_port.py)\nbash run.sh $PORT\n", "mpirun": PREPARE + "mpirun -n 8 python train.py\n",
        "ssh": PREPARE + "ssh $HOST python train.py\n", "ray": "ray start --head\npython test.py\n", "launcher": "python launch_tests.py\n", "submits": "python submit_eval.py\n",
        "step": "srun python test.py\n", "first": PREPARE + STEP}, {
        "host file": "scontrol show hostnames > hosts\npython test.py --hosts hosts\n", "after a step": "srun hostname\npython merge.py\nbash go.sh\n", **PREPARED,
        "installation": "python setup.py install\nbash run.sh\n"}),
    ("signal-not-to-batch", ("warning", "hint"), "", {
        "function": USR1 + "trap save USR1\npython train.py &\nwait\n", "batch shell": USR1 + TRAP + "python train.py\n", "no trap": USR1 + "python train.py\n", "step": USR1 + TRAP + STEP}, {
        "commented": USR1.replace("#SBATCH --signal", "##SBATCH --signal") + TRAP + STEP, "other signal": USR1.replace("USR1", "TERM") + TRAP + STEP, "exit": USR1 + "trap 'rm x' EXIT\n" + STEP,
        "printed": USR1 + "echo \"trap 'x' USR1\"\n" + STEP, "B": USR1.replace("USR1", "B:USR1") + TRAP + STEP, "other": USR1 + "trap 'rm x' TERM INT\n" + STEP, "no signal": ONE + TRAP + STEP,
        "comment": USR1 + "# " + TRAP + STEP, "no trap": USR1 + STEP}, {
        "written": USR1 + "cat > a.sh <<'EOF'\ntrap 'touch stop' USR1\npython train.py & wait\nEOF\nsrun bash a.sh\n", "ignored": USR1 + "trap '' USR1\n" + STEP,
        "trap of the step": USR1 + "srun bash -c 'trap \"touch stop\" USR1; python train.py & wait'\n",
        "default": USR1 + "trap - USR1\n" + STEP, "double quotes": USR1 + "srun bash -c \"trap 'touch stop' USR1; python train.py & wait\"\n",
        "made executable": USR1 + "cat > run.sh <<'EOF'\ntrap 'touch stop' USR1\npython train.py & wait\nEOF\nchmod +x run.sh\nsrun ./run.sh\n",
        "ignored in a function": USR1 + "prepare() { trap '' USR1 TERM; }\nprepare\n" + STEP}),
]  # fmt: skip


def rows(*tables):
    return [
        pytest.param(rule[0], rule[1], rule[2] + text, id=f"{rule[0]}: {kind}")
        for rule in RULES
        for table in tables
        for kind, text in rule[table].items()
    ]


def found(text, name):
    return [finding for finding in judge(text, "job.sbatch") if finding.name == name]


@pytest.mark.parametrize(("name", "severities", "text"), rows(3))
def test_the_mistake_is_found(name, severities, text):
    assert next(finding.severity for finding in found(text, name)) in severities


@pytest.mark.parametrize(("name", "_", "text"), rows(4, 5))
def test_a_script_that_works_is_left_alone(name, _, text):
    assert found(text, name) == []


def test_a_signal_to_the_batch_shell_needs_a_wait():
    (finding,) = found(USR1 + TRAP + "python train.py\n", "signal-not-to-batch")
    assert finding.fix.startswith("#SBATCH --signal=B:USR1@90, and start the program with &")


TESTS = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\n#SBATCH --cpus-per-task=8\n"


@pytest.mark.parametrize(
    "line",
    ["python test.py", "module load cuda\npython test.py", "cd run\npython tests/test_net.py"],
)
def test_a_test_that_is_all_that_several_tasks_do_needs_srun(line):
    assert found(TESTS + line + "\n", "missing-srun")
    assert not found(TESTS + line + " --quick\n", "missing-srun")
    assert not found(TESTS + line + "\nbash run.sh\n", "missing-srun")


ALL = "MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST{0})\nsrun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=${1}:29500 train.py\n"


@pytest.mark.parametrize(
    ("script", "name"),
    [
        (ALL.format("", "MASTER_ADDR"), "master-addr-wrong"),
        (ALL.format(" | head -n 1", "MASTERADDR"), "unset-variable"),
        (
            ONE + "srun fabric run --devices=0,1,2,3,4,5 train.py\n",
            "gpus-fewer-than-processes",
        ),
    ],
)
def test_slips_of_public_scripts_are_errors(script, name):
    findings = found(script if script.startswith("#!") else TWO + script, name)
    assert "error" in [finding.severity for finding in findings]
    assert not found(TWO + ALL.format(" | head -n 1", "MASTER_ADDR"), name)
