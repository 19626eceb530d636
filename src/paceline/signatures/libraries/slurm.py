"""Signatures of Slurm, of srun, and of frameworks that check Slurm's task counts."""

from __future__ import annotations

from paceline.signatures.signature import Signature, cause, note
from paceline.signatures.tier import Tier

_MEMORY = (
    "sbatch --mem=... with more memory, or fewer DataLoader workers and less caching; sacct -j JOB"
    " -o MaxRSS,State"
)

SIGNATURES: tuple[Signature, ...] = (
    cause(
        "slurm-time-limit",
        "due to time limit|time limit exhausted|job reached its time|reached time limit|state"
        " timeout",
        r"(?:(?P<unit>JOB|STEP) (?P<job>[\d._]+\S*).*)?(?:CANCELLED AT.*)?DUE TO TIME"
        r" LIMIT|Exceeded job (?:time"
        r"|memory)? ?limit.*time"
        r"|(?:job|step).*(?:reached|exceeded|exhausted) (?:its |the )?(?:wall)?time ?limit",
        what=("Slurm ended job {job} at its time limit", "Slurm ended the job at its time limit"),
        fix=(
            "ask for more time (--time), or save and requeue before it: #SBATCH --signal=TERM@120"
            " and a script that handles it"
        ),
        tier=Tier.EXCEPTION,
        key="stop",
    ),
    cause(
        "rank-died-oom-killer",
        "oom-kill|oom_kill|out of memory|out-of-memory handler|out_of_memory|oom"
        " killer|oomkilled|memory limit|oom-killer|low on memory|oom score|memory pressure",
        r"[Dd]etected \d+ oom[-_]kill event|oom-kill(?:er)?\b|invoked oom-killer"
        r"|Out of memory: Kill(?:ed)? process (?P<pid>\d+)"
        r"|Memory cgroup out of memory|OOMKilled|(?:task|tasks) [\d,\- ]+: Out Of"
        r" Memory|OUT_OF_MEMORY"
        r"|[Ee]xceeded (?:job |step )?memory limit|being killed.*exceed\w* .*memory"
        r"|killed due to the node running low on memory|[1-9]\d* Workers \([^)]*\) killed due to"
        r" memory pressure"
        r"|cgroup out-of-memory handler",
        what=(
            "the kernel killed process {pid}: host memory ran out",
            "a process was killed because host memory ran out (the job's limit or the node's)",
        ),
        fix=_MEMORY,
        why="the memory of the node or of the job's cgroup is meant, not the GPU's",
        unless=r"CUDA|torch\S*OutOfMemory|HIP out",
    ),
    cause(
        "slurm-job-ended",
        "cancelled at|due to preemption",
        r"CANCELLED AT \S+ DUE TO (?P<reason>PREEMPTION|JOB REQUEUE|\w+ LIMIT|ADMIN\w*)|DUE TO"
        r" (?P<cause>PREEMPTION)",
        what=("Slurm ended the job: {reason}", "Slurm ended the job: {cause}"),
        fix="save on SIGTERM and requeue: #SBATCH --requeue --signal=TERM@120",
        tier=Tier.EXCEPTION,
        key="stop",
        unless=r"TIME LIMIT",
    ),
    cause(
        "node-missing",
        "node failure|node_fail|not responding",
        r"DUE TO NODE FAILURE|NODE_FAIL|error: Node failure on (?P<node>\S+)|(?:node"
        r"|nodes) (?P<name>\S+) not responding",
        what=(
            "the node {node} failed",
            "the node {name} does not respond",
            "a node of the job failed",
        ),
        fix=(
            "submit again with --exclude=NODE, and tell the operators; sinfo -R tells why it is"
            " down"
        ),
        tier=Tier.OUTSIDE,
    ),
    cause(
        "slurm-job-ended",
        "cancelled at",
        r"\*\*\* JOB (?P<job>\S+) ON \S+ CANCELLED AT \S+ *\*\*\*",
        what="Slurm cancelled job {job}, and names no reason: by scancel, mostly",
        fix=(
            "sacct -j {job} -o JobID,State,ExitCode,Elapsed: CANCELLED by UID tells who; look for"
            " what failed above it"
        ),
        why="at a time limit, a preemption or a failed node Slurm writes the reason behind it",
        tier=Tier.INTERRUPTED,
        key="stop",
    ),
    cause(
        "slurm-job-ended",
        "cancelled at",
        r"\*\*\* STEP (?P<step>\S+) ON \S+ CANCELLED AT \S+ *\*\*\*",
        what="Slurm cancelled step {step}: by scancel, or because a task of it failed",
        fix=(
            "look for the first task that failed above this line; sacct -j JOB -o"
            " JobID,State,ExitCode"
        ),
        tier=Tier.STEP_ENDED,
        key="step-cancelled",
    ),
    cause(
        "slurm-ntasks-mismatch",
        "ntasks|tasks per node|number of tasks",
        r"You set `?(?:devices|--ntasks|num_nodes|gpus)=?(?P<devices>[^`]*)`? (?:in .*?(?:number of"
        r" (?:tasks"
        r"|nodes) .*?`(?P<tasks>[^`]+)`"
        r").*does not match|in your SLURM bash script)|number of tasks per node.*does not match|"
        r"SLURM_NTASKS\S* .*(?:does not match|differs|!=)|ntasks.*does not match",
        what=(
            "the program expects {devices} processes and Slurm was asked for {tasks}",
            "the number of Slurm tasks does not fit the processes that the program expects",
        ),
        fix=(
            "#SBATCH --ntasks-per-node equal to the GPUs per node (and srun in front of the"
            " program)"
        ),
    ),
    cause(
        "missing-srun",
        "srun` command is available|srun command is available",
        r"`?srun`? command is available on your system but is not used",
        what="srun is there and is not used: the program runs as one task on the first node",
        fix="srun python script.py in the job script",
        tier=Tier.SUSPECTED,
    ),
    cause(
        "clock-skew",
        "credential|sync of clocks|clock skew|clocks",
        r"[Jj]ob credential expired|(?:Expired|Rewound) credential|Check for out of sync"
        r" clocks|check sync of clocks"
        r"|clock skew detected",
        what=(
            "a credential of the scheduler counts as expired: the clocks of the nodes differ"
            " (likely)"
        ),
        fix=(
            "on each node: chronyc tracking, or timedatectl; tell the operators which node's clock"
            " is off"
        ),
        why=(
            "the scheduler's credentials are valid for a few minutes only, by the clock of the node"
            " that reads them"
        ),
        unless=r"make(?:\[\d+\])?: |\bmake: warning",
    ),
    cause(
        "run-folder-not-shared",
        "couldn't chdir to",
        r"couldn't chdir to [`'\"](?P<folder>[^`'\"]+)['\"]: (?P<reason>[^:]+)",
        what=(
            "the job's folder {folder} cannot be used on this node ({reason}), so it runs in"
            " another one"
        ),
        fix=(
            "submit from a folder that the compute nodes see and may enter, or #SBATCH"
            " --chdir=FOLDER"
        ),
        tier=Tier.LASTING,
    ),
    cause(
        "peer-rank-died",
        "job step aborted|forcing job termination|first task exited|terminating stepid|terminating"
        " job step|_step_signal",
        r"Job step aborted|forcing job termination|First task exited|Terminating (?:StepId|job"
        r" step)",
        what="srun ends the other tasks after one of them failed",
        fix="look for the task that ended first, in the output of all tasks",
        tier=Tier.TASKS_ENDED,
    ),
    cause(
        "launcher-summary-only",
        "exited with exit code|srun: error",
        r"srun: error: (?P<node>[^\s:]+): tasks? (?P<task>[\d,\- ]+): Exited with exit code"
        r" (?P<code>\d+)",
        what="task {task} on {node} ended with exit code {code}; its own error is not in this text",
        fix="look at the output of that task: srun --output=log-%t.txt --label",
        tier=Tier.SUMMARY,
    ),
    cause(
        "rank-segfault",
        "srun: error",
        r"srun: error: (?P<node>[^\s:]+): tasks? (?P<task>[\d,\- ]+): Segmentation fault",
        what="task {task} on {node} crashed in native code (SIGSEGV)",
        fix="python -X faulthandler script.py prints the stack of the crash",
        tier=Tier.HINTED,
        where="task {task} on {node}",
    ),
    cause(
        "dataloader-shm-too-small",
        "srun: error",
        r"srun: error: (?P<node>[^\s:]+): tasks? (?P<task>[\d,\- ]+): Bus error",
        what=(
            "task {task} on {node} ended with a bus error, mostly because /dev/shm is full (likely)"
        ),
        fix="df -h /dev/shm on the node; a larger one, or fewer DataLoader workers",
        tier=Tier.HINTED,
    ),
    cause(
        "rank-died-signal",
        "srun: error",
        r"srun: error: (?P<node>[^\s:]+): tasks? (?P<task>[\d,\- ]+): (?P<signal>Killed|Floating"
        r" point exception"
        r"|Illegal instruction)",
        what="task {task} on {node} was ended by a signal: {signal}",
        fix=(
            "sacct -j JOB -o JobID,State,ExitCode,MaxRSS and dmesg -T | grep -i oom on the node"
            " tell who sent it"
        ),
        tier=Tier.STOPPED,
    ),
    cause(
        "launcher-summary-only",
        "srun: error",
        r"srun: error: .*: (?:Aborted|Terminated)",
        what="a Slurm task was aborted; its own error is not in this text",
        fix="look at the output of that task: srun --output=log-%t.txt --label",
        tier=Tier.STEP_ENDED,
    ),
    note(
        "member",
        "member:",
        r"initializing (?:distributed|ddp\w*): GLOBAL_RANK: *(?P<rank>\d+), MEMBER:"
        r" *\d+/(?P<total>\d+)",
    ),
    note(
        "all-registered",
        "distributed processes registered",
        r"All (?:distributed|DDP) processes registered|(?:distributed_backend|backend)=\w+",
    ),
    note(
        "local-rank-devices",
        "local_rank:",
        r"LOCAL_RANK: *(?P<local>\d+) *- *CUDA_VISIBLE_DEVICES: *\[(?P<devices>[^\]]*)\]",
    ),
    note("slurm", "slurm|srun", r"SLURM_|slurmstepd|\bsrun\b|SLURM"),
)
