#!/bin/bash
# paceline submit, 2026-11-21 14:03: train.py
# saved as job.sh, it is submitted by:
#   sbatch job.sh
#SBATCH --job-name=train
#SBATCH --nodes=1-2
#SBATCH --cpus-per-task=16
#SBATCH --time=01:30:00
# sent to the steps 180 s before the time limit: the run saves and ends
#SBATCH --signal=TERM@180
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --chdir=/home/ada/digits
#SBATCH --output=slurm-%j.out

# a secret by which the launchers of the nodes know each other: new at each start, and written to no file
export PACELINE_RUN_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
# this script runs on the first node of the job: its address, and a port that is free there
endpoint=$(/opt/venv/bin/paceline endpoint --run-dir /home/ada/digits/paceline-runs/20261121-140300-train-3f2a --job-script "$0" --on-node-loss fail) || exit
status=0
srun --export=ALL --kill-on-bad-exit=1 --ntasks-per-node=1 --cpus-per-task=16 \
    /opt/venv/bin/paceline run --rdzv-endpoint "$endpoint" --grace-s 120 \
    --run-dir /home/ada/digits/paceline-runs/20261121-140300-train-3f2a \
    --hang-timeout 15m \
    train.py || status=$?
exit "$status"
