"""The options of ``paceline submit``, and those that it forwards to ``paceline run``. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from paceline.launch.plan.option import Option
from paceline.launch.plan.options import OPTIONS

ON_NODE_LOSS = ("requeue", "fail")

RESOURCES = "What is asked of Slurm"
PLACEMENT = "Which nodes, when it may start, and mail"
SWEEPS = "Sweeps: an array of runs with different arguments"
LOSS = "When a job stops or a node is lost"
SUBMITTING = "Submitting"

# Short forms are those of sbatch, with the same meaning.
OWN: tuple[Option, ...] = (
    Option(
        "nodes",
        "number of nodes, or a range MIN-MAX",
        "1",
        short="-N",
        metavar="N",
        group=RESOURCES,
    ),
    Option(
        "gpus_per_node",
        "GPUs on each node, 4 or a100:4; without it none",
        metavar="N",
        group=RESOURCES,
    ),
    Option("cpus_per_gpu", "CPUs for each GPU", metavar="N", group=RESOURCES),
    Option(
        "cpus_per_node", "CPUs on each node, for jobs without GPUs", metavar="N", group=RESOURCES
    ),
    Option(
        "mem", "memory on each node, such as 64G; 0 is all of it", metavar="SIZE", group=RESOURCES
    ),
    Option(
        "time",
        "how long the job may take: 90m, 2h, or as sbatch has it, 1-12:00:00",
        short="-t",
        metavar="TIME",
        group=RESOURCES,
    ),
    Option("account", "who pays", short="-A", metavar="NAME", group=RESOURCES),
    Option(
        "partition",
        "where the job waits; default the cluster's own choice",
        short="-p",
        metavar="NAME",
        group=RESOURCES,
    ),
    Option("job_name", "default the script's name", short="-J", metavar="NAME", group=RESOURCES),
    Option(
        "sbatch",
        "any other option of sbatch: --sbatch --nice=100",
        many=True,
        metavar="OPTION",
        group=RESOURCES,
    ),
    Option(
        "profile",
        "a site's settings: profiles/NAME.toml, or a path",
        metavar="NAME",
        group=RESOURCES,
    ),
    Option(
        "from",
        "a job script, from which requests, modules and variables are taken that are not typed",
        metavar="JOB",
        group=RESOURCES,
    ),
    Option(
        "qos",
        "quality of service, which sets priority and limits",
        short="-q",
        metavar="NAME",
        group=PLACEMENT,
    ),
    Option(
        "constraint",
        "features that the nodes must have: a100, or 'a100|h100'",
        short="-C",
        metavar="FEATURES",
        group=PLACEMENT,
    ),
    Option(
        "nodelist",
        "nodes that the job must have: node[1-2]",
        short="-w",
        metavar="NODES",
        group=PLACEMENT,
    ),
    Option(
        "exclude", "nodes that the job must not have", short="-x", metavar="NODES", group=PLACEMENT
    ),
    Option("exclusive", "share the nodes with no other job", flag=True, group=PLACEMENT),
    Option("reservation", "nodes that are reserved", metavar="NAME", group=PLACEMENT),
    Option(
        "dependency",
        "start after other jobs: afterok:4711, or singleton",
        short="-d",
        metavar="LIST",
        group=PLACEMENT,
    ),
    Option(
        "begin",
        "start no earlier than this: 20:00, now+2hours, 2026-12-01T08:00",
        short="-b",
        metavar="TIME",
        group=PLACEMENT,
    ),
    Option("mail_type", "when Slurm sends mail: END,FAIL, or ALL", metavar="LIST", group=PLACEMENT),
    Option(
        "mail_user", "who gets it; default the user who submits", metavar="ADDRESS", group=PLACEMENT
    ),
    Option(
        "param",
        "values typed here: lr=0.1,0.01 or fold=range(5); several give every combination",
        many=True,
        metavar="NAME=VALUES",
        group=SWEEPS,
    ),
    Option(
        "array",
        "the elements, and how many at a time: 0-49%8, or %8 for all of a sweep",
        short="-a",
        metavar="INDICES",
        group=SWEEPS,
    ),
    Option(
        "again",
        "submit elements of the sweep SCRIPT again: failed (also the missing), or indices",
        metavar="failed|INDICES",
        group=SWEEPS,
    ),
    Option(
        "requeue",
        "queue the job again when it stopped unfinished (this is the default)",
        flag=True,
        group=LOSS,
    ),
    Option("no_requeue", "never queue the job again", flag=True, group=LOSS),
    Option(
        "on_node_loss",
        "requeue: a job that lost a node continues from its last checkpoint; fail: it ends",
        "requeue",
        metavar="|".join(ON_NODE_LOSS),
        group=LOSS,
    ),
    Option(
        "run_dir",
        "folder of this run, default paceline-runs/<time>-<script>",
        metavar="DIR",
        group=SUBMITTING,
    ),
    Option(
        "dry_run",
        "print the job script and submit nothing; needs no Slurm",
        flag=True,
        group=SUBMITTING,
    ),
    Option(
        "follow", "wait for the job and show its output, to its end", flag=True, group=SUBMITTING
    ),
    Option("json", "print what was submitted as JSON to stdout", flag=True, group=SUBMITTING),
)

# Options that become a line of the job script as they are typed; all of them are sbatch's.
DIRECT: tuple[Option, ...] = tuple(option for option in OWN if option.group == PLACEMENT)

# Options that Slurm decides, that the two commands define differently, or that start no ranks.
_NOT_FORWARDED = {
    "nnodes",
    "node_rank",
    "master_addr",
    "master_port",
    "local_addr",
    "rdzv_backend",
    "rdzv_endpoint",
    "rdzv_id",
    "rdzv_conf",
    "standalone",
    "check_only",
    "no_slurm",
    "run_dir",
    "json",
}
_SHORT = {"-m"}  # -t and -r have other meanings in sbatch
FORWARDED: tuple[Option, ...] = tuple(
    option if option.short in _SHORT else replace(option, short="")
    for option in OPTIONS
    if option.name not in _NOT_FORWARDED
)
GRACE = ("grace_s", "shutdown_timeout")  # forwarded too, and --signal is derived from them

# The option of submit that sets what an option of sbatch sets.
INSTEAD: Mapping[str, str] = {
    "nodes": "--nodes",
    "gpus": "--gpus-per-node",
    "gpus-per-node": "--gpus-per-node",
    "gpus-per-task": "--gpus-per-node",
    "gpus-per-socket": "--gpus-per-node",
    "cpus-per-gpu": "--cpus-per-gpu",
    "cpus-per-task": "--cpus-per-node",
    "mem": "--mem",
    "time": "--time",
    "account": "--account",
    "partition": "--partition",
    "job-name": "--job-name",
    "signal": "--grace-s",
    "array": "--array",
    "requeue": "--requeue",
    "no-requeue": "--no-requeue",
    "output": "--run-dir",
    "error": "--run-dir",
    "test-only": "--dry-run",
    "wait": "--follow",
}
# Options of sbatch that submit refuses, and why.
NEVER: Mapping[str, str] = {
    "ntasks": "there is one task on each node, and it starts the ranks of the node",
    "ntasks-per-node": "there is one task on each node, and it starts the ranks of the node",
    "ntasks-per-gpu": "there is one task on each node, and it starts the ranks of the node",
    "ntasks-per-socket": "there is one task on each node, and it starts the ranks of the node",
    "ntasks-per-core": "there is one task on each node, and it starts the ranks of the node",
    "chdir": "the job works in the folder that it is submitted from",
    "open-mode": "a job that is queued again appends to its output",
    "wrap": "the script is written by paceline",
    "parsable": "paceline reads the job's id itself",
    "help": "it starts nothing",
    "usage": "it starts nothing",
    "version": "it starts nothing",
}
# What to use instead of them; without an entry the option is left out.
NEVER_FIX: Mapping[str, str] = {
    "ntasks": "--nproc-per-node 4   (the ranks of each node)",
    "ntasks-per-node": "--nproc-per-node 4   (the ranks of each node)",
}
