#!/bin/bash
# paceline submit, 2026-11-21 14:03: train.py
# with the profile site
# saved as job.sh, it is submitted by:
#   sbatch job.sh
#SBATCH --job-name=train
#SBATCH --nodes=2
# one task on each node: it starts the ranks of its node
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=a100:4
# 8 for each GPU, as CPUs of the task: every version of Slurm has these right
#SBATCH --cpus-per-task=32
#SBATCH --mem=0
#SBATCH --time=04:00:00
#SBATCH --account=physics
#SBATCH --partition=gpu
#SBATCH --exclusive
#SBATCH --constraint="a100 & nvme"
#SBATCH --container-image="x y"
# sent to the steps 180 s before the time limit: the run saves and ends
#SBATCH --signal=TERM@180
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --chdir=/home/ada/digits
#SBATCH --output=slurm-%j.out

module load cuda/12.4 || exit
module load 'a $(touch x)' || exit
source /opt/site.sh
echo $HOSTNAME
export PLAIN=1
# first line
# #SBATCH --nodes=99
# last line
export NASTY=$'$(touch x) \'a\' "b"\n`c`'
# on each node, and before the variable is set: Slurm complains of a TMPDIR that is not there
srun --export=ALL --ntasks-per-node=1 mkdir -p -- /scratch/ada/"${SLURM_JOB_ID}"'/x y' || exit
export TMPDIR=/scratch/ada/"${SLURM_JOB_ID}"'/x y'

# a secret by which the launchers of the nodes know each other: new at each start, and written to no file
export PACELINE_RUN_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
# this script runs on the first node of the job: its address, and a port that is free there
endpoint=$(/opt/venv/bin/paceline endpoint --run-dir '/home/ada/digits/all runs of ada/20261121-140300-train-3f2a' --job-script "$0" --on-node-loss fail) || exit
status=0
srun --export=ALL --kill-on-bad-exit=1 --ntasks-per-node=1 --cpus-per-task=32 \
    apptainer exec --nv --bind /home/ada/digits/data:/data 'image of ada.sif' paceline run --rdzv-endpoint "$endpoint" --grace-s 120 \
    --run-dir '/home/ada/digits/all runs of ada/20261121-140300-train-3f2a' \
    --hang-timeout 600 --check-finite \
    train.py --epochs 3 || status=$?
exit "$status"
