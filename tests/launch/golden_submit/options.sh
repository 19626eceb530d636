#!/bin/bash
# paceline submit, 2026-11-21 14:03: json.tool
# saved as job.sh, it is submitted by:
#   sbatch job.sh
#SBATCH --job-name="digits of today"
#SBATCH --nodes=2
# one task on each node: it starts the ranks of its node
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
# 8 for each GPU, as CPUs of the task: every version of Slurm has these right
#SBATCH --cpus-per-task=32
#SBATCH --mem=64G
#SBATCH --time=04:00:00
#SBATCH --partition=gpu
#SBATCH --constraint="a100|h100"
#SBATCH --exclusive
#SBATCH --qos=long
# sent to the steps 360 s before the time limit: the run saves and ends
#SBATCH --signal=TERM@360
# never by Slurm itself, so the loss of a node ends the job: an unfinished run is submitted again
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --chdir=/home/ada/digits
#SBATCH --output=slurm-%j.out

# if the latest checkpoint is damaged: continue from the latest one that is complete
export PACELINE_DAMAGED=skip

# a secret by which the launchers of the nodes know each other: new at each start, and written to no file
export PACELINE_RUN_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
# this script runs on the first node of the job: its address, and a port that is free there
endpoint=$(/opt/venv/bin/paceline endpoint --run-dir /home/ada/digits/paceline-runs/20261121-140300-json-3f2a --job-script "$0" --on-node-loss fail) || exit
status=0
srun --export=ALL --kill-on-bad-exit=1 --ntasks-per-node=1 --cpus-per-task=32 \
    /opt/venv/bin/paceline run --rdzv-endpoint "$endpoint" --grace-s 300 \
    --run-dir /home/ada/digits/paceline-runs/20261121-140300-json-3f2a \
    --nproc-per-node 4 --hang-timeout 600 --check-finite --module \
    json.tool -m x || status=$?
# 75: stopped unfinished, with a checkpoint; queued again, the job continues from there
/opt/venv/bin/paceline requeue /home/ada/digits/paceline-runs/20261121-140300-json-3f2a --status "$status"
exit "$status"
