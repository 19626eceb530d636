"""Signatures of wrong ranks: the variables and numbers that a launcher sets, and init files."""

from __future__ import annotations

from paceline.signatures.signature import Signature, cause
from paceline.signatures.tier import Tier

SIGNATURES: tuple[Signature, ...] = (
    cause(
        "rank-env-missing",
        "expected, but not set|environment variable",
        r"environment variable (?P<name>RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|LOCAL_RANK)"
        r" expected, but not set",
        what="{name} is not set: the script was not started by a launcher",
        fix=(
            "start it with a launcher: torchrun --nproc-per-node=N script.py, or srun with the"
            " variables exported"
        ),
        why="init_method env:// reads rank, size and address from the environment",
    ),
    cause(
        "rank-env-missing",
        "keyerror|environ|expandvars|rank",
        r"KeyError: ['\"]"
        r"(?P<name>RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT|LOCAL_WORLD_SIZE"
        r"|SLURM_PROCID|SLURM_LOCALID|SLURM_NTASKS|OMPI_COMM_WORLD_RANK|OMPI_COMM_WORLD_LOCAL_RANK"
        r"|SLURM_NODELIST|SLURM_JOB_NODELIST)['\"]"
        r"|(?P<rankarg>rank parameter missing|world size parameter missing)",
        what=(
            (
                "{name} is not in the environment: the script was not started by the launcher that"
                " it expects"
            ),
            "{rankarg}: the script was not started by the launcher that it expects",
        ),
        fix=(
            "start it with the launcher that sets it: torchrun for RANK and LOCAL_RANK, srun for"
            " SLURM_*, mpirun for OMPI_*"
        ),
    ),
    cause(
        "world-size-mismatch",
        "interval|rank <|rank must be|world_size|num_replicas|mismatch in rank count",
        r"Invalid rank (?P<rank>\d+), rank should be in the interval \[0, *(?P<last>\d+)\]"
        r"|rank < size\. (?P<a>\d+) vs (?P<b>\d+)"
        r"|mismatch in rank count from procs (?P<want>\d+) : (?P<got>\d+)"
        r"|rank (?:must be|should be) (?:less|smaller) than (?:the )?world.?size|"
        r"Check failed.*world_size.*mismatch|expected world_size (?:of )?\d+ but got \d+",
        what=(
            "rank {rank} is outside the world of ranks 0 to {last}",
            "rank {a} joined a world of size {b}",
            "the world size is {got} where {want} was expected",
            "a rank's number does not fit the world size",
        ),
        fix=(
            "give every node the same --nnodes and number of processes; start no more nodes than"
            " that"
        ),
    ),
    cause(
        "world-size-mismatch",
        "train_batch_size is not",
        r"train_batch_size is not equal to micro_batch_per_gpu",
        what="the batch size that is configured does not fit the number of processes",
        fix=(
            "start as many processes as the configuration means: batch size = micro batch *"
            " accumulation * processes"
        ),
        tier=Tier.COARSE,
    ),
    cause(
        "duplicate-ranks",
        "has already checked in",
        r"ranks? (?P<rank>\d+) of \d+ ranks has already checked in",
        what="two processes took rank {rank}",
        fix=(
            "give every process a rank of its own: torchrun --node-rank 0, 1, ...; under srun"
            " $SLURM_PROCID"
        ),
    ),
    cause(
        "duplicate-ranks",
        "duplicate|already",
        r"(?:rank|worker) (?P<rank>\d+) (?:has "
        r"|is )?already (?:joined|registered|taken|in use|exists)|duplicated? (?:global )?rank:?"
        r" *\d+",
        what=("two processes took rank {rank}", "two processes took the same rank"),
        fix="give every node a node rank of its own: --node-rank 0, 1, ...",
        unless=r"GPU|device",
    ),
    cause(
        "stale-init-file",
        "file://|filestore|init_method|init-file",
        r"(?:FileStore|file://|init[_ -](?:method )?file).*(?:timeout|timed out|stale|already"
        r" exists|left over|Wait)",
        what=(
            "the file of the file:// init method is left over from an earlier run, or is not shared"
        ),
        fix="delete the file before each start, or use env:// with a launcher",
        tier=Tier.WAIT_EXPLAINED,
    ),
    cause(
        "local-rank-argument-unknown",
        "local-rank|local_rank",
        r"(?:unrecognized arguments?:.*|no such option:? *|Unknown (?:option|argument|flag)s?:? *|"
        r"(?:Could not consume|error: (?:extra|invalid) argument).*)--(?P<arg>local[-_]rank)\b",
        what="the script does not know the argument --{arg} that torch.distributed.launch passes",
        fix=(
            "start it with torchrun and read os.environ['LOCAL_RANK'], or accept both --local-rank"
            " and --local_rank"
        ),
        why="since torch 2.0 the launcher writes it with a dash",
    ),
)
