#!/bin/bash
name=$1
sbatch <<EOF
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --mem=0
#SBATCH --time=04:00:00
#SBATCH --job-name=$name

head=\$(scontrol show hostnames \$SLURM_JOB_NODELIST | head -n 1)
srun torchrun --nnodes=\$SLURM_NNODES --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=\$head:29500 train.py
EOF
