#!/bin/bash
# paceline submit, 2026-11-21 14:03: train.py
# saved as job.sh, it is submitted by:
#   sbatch job.sh
#SBATCH --job-name=train
#SBATCH --array=0-2%2
#SBATCH --nodes=2
# one task on each node: it starts the ranks of its node
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
# 8 for each GPU, as CPUs of the task: every version of Slurm has these right
#SBATCH --cpus-per-task=32
#SBATCH --mem=64G
#SBATCH --time=04:00:00
#SBATCH --partition=gpu
#SBATCH --exclude="n[1-2]"
# sent to the steps 180 s before the time limit: the run saves and ends
#SBATCH --signal=TERM@180
# after preemption, the time limit or the loss of a node the job is queued again, and continues
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --chdir=/home/ada/digits
#SBATCH --output=slurm-%A_%a.out

# if the latest checkpoint is damaged: continue from the latest one that is complete
export PACELINE_DAMAGED=skip

# the values of each element, for the record that the job makes
# sweep: {"0": {"lr": "0.1", "name": "a b"}, "1": {"lr": "0.1", "name": "$(touch x)"}, "2": {"lr": "0.01", "name": "a b"}}
# each element of the array has its own run folder and arguments
run_dir=/home/ada/digits/paceline-runs/20261121-140300-train-3f2a-sweep/"$SLURM_ARRAY_TASK_ID"
case "$SLURM_ARRAY_TASK_ID" in
0) program=(train.py --lr=0.1 --out 0 --name 'a b') ;;
1) program=(train.py --lr=0.1 --out 1 --name '$(touch x)') ;;
2) program=(train.py --lr=0.01 --out 2 --name 'a b') ;;
*) echo "the sweep has no element $SLURM_ARRAY_TASK_ID" >&2; exit 2 ;;
esac

# a secret by which the launchers of the nodes know each other: new at each start, and written to no file
export PACELINE_RUN_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
# this script runs on the first node of the job: its address, and a port that is free there
endpoint=$(/opt/venv/bin/paceline endpoint --run-dir "$run_dir" --job-script "$0") || exit
status=0
srun --export=ALL --kill-on-bad-exit=1 --ntasks-per-node=1 --cpus-per-task=32 \
    /opt/venv/bin/paceline run --rdzv-endpoint "$endpoint" --grace-s 120 \
    --run-dir "$run_dir" \
    --hang-timeout 15m \
    "${program[@]}" || status=$?
# 75: stopped unfinished, with a checkpoint; queued again, the job continues from there
/opt/venv/bin/paceline requeue "$run_dir" --status "$status"
exit "$status"
