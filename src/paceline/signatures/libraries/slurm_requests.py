"""Signatures of requests that Slurm rejects, and of commands that do not reach Slurm."""

from __future__ import annotations

from paceline.signatures.signature import Signature, cause, note
from paceline.signatures.tier import Tier

_COMPARE = "compare the #SBATCH lines with sinfo -o '%P %l %c %m %G' and the limits of your account"

SIGNATURES: tuple[Signature, ...] = (
    cause(
        "cpus-too-few",
        "more processors requested than permitted|requested node configuration is not available",
        r"More processors requested than permitted",
        what="srun asks for more than the job was given",
        fix="srun --ntasks and --cpus-per-task at most as in the #SBATCH lines",
    ),
    cause(
        "unknown-sbatch-option",
        "sbatch:|srun:",
        r"(?:sbatch|srun|salloc): (?:error: )?(?:unrecognized option|invalid option"
        r"|unknown option)[^\w-]*(?P<option>-{0,2}[\w-]+)?",
        what=("Slurm does not know the option {option}", "Slurm does not know an option"),
        fix="sbatch --help lists them",
    ),
    cause(
        "slurm-job-ended",
        "already completing or completed|job has been revoked|job allocation has expired|has been"
        " cancelled",
        r"Job/step already completing or completed|(?:srun|salloc): .*[Jj]ob (?:allocation )?\d+"
        r" has been revoked"
        r"|srun: error: Unable to create step for job \d+: Job allocation has expired",
        what="the job was already over when a step of it was to start or to go on",
        fix="sacct -j JOB -o JobID,State,Reason,Elapsed,Timelimit tells how the job ended",
        tier=Tier.COARSE,
    ),
    cause(
        "slurm-refused",
        "job submission failed|unable to create step|unable to allocate resources|job"
        " submit/allocate failed|allocation failure",
        r"(?:[Jj]ob submission failed|Unable to create step for job \S+|Unable to allocate"
        r" resources"
        r"|Job submit/allocate failed|[Aa]llocation failure): (?P<reason>.+)",
        what="Slurm refuses the request: {reason}",
        fix=_COMPARE,
        tier=Tier.COARSE,
        unless=r"Job/step already completing|allocation has expired",
    ),
    cause(
        "slurm-refused",
        "sbatch: error|srun: error|salloc: error",
        r"(?:sbatch|srun|salloc): error: (?P<reason>.*(?:can ?not be satisfied|specification"
        r" invalid)"
        r"|[Ii]nvalid (?!job id)[\w -]+ specified.*|[Ii]nvalid [\w -]+ specification.*"
        r"|(?:QOS|Assoc|MaxJob|AssocGrp|Partition)[A-Z]\w+.*|You (?:must|need to|have to|are"
        r" not) .*"
        r"|.*(?:not permitted|not allowed|is invalid|are invalid).*)",
        what="Slurm refuses the request: {reason}",
        fix=_COMPARE,
        tier=Tier.BROAD,
    ),
    cause(
        "script-missing",
        "sbatch: error: unable to open file|unable to open file",
        r"sbatch: error: Unable to open file (?P<file>\S+)",
        what="the job script {file} does not exist where sbatch runs",
        fix="ls -l {file}; sbatch takes the path from the folder in which it runs",
    ),
    cause(
        "slurm-refused",
        "this does not look like a batch script",
        r"This does not look like a batch script",
        what=(
            "Slurm refuses the request: the file is no job script, its first line does not begin"
            " with #!"
        ),
        fix="begin the script with #!/bin/bash, or sbatch --wrap 'COMMAND'",
    ),
    cause(
        "slurm-job-ended",
        "signal sigusr2 on|is preempted|signal sigusr1|preempted",
        r"Caught signal SIGUSR[12] on \S+: this job is (?P<how>preempted|timed-out)",
        what="Slurm was about to end the job, and submitit had it queued again: {how}",
        fix=(
            "a checkpointing callable goes on in the next start; sacct -j JOB -o"
            " JobID,State,Elapsed,Timelimit"
        ),
        tier=Tier.SUSPECTED,
    ),
    cause(
        "dos-line-ends",
        "dos line breaks|^m: bad interpreter",
        r"contains DOS line breaks|\^M: bad interpreter",
        what="the job script has line ends of Windows",
        fix="dos2unix SCRIPT, or sed -i 's/\\r$//' SCRIPT",
    ),
    cause(
        "slurm-unavailable",
        "unable to contact slurm controller|socket timed out on send/recv|munge encode"
        " failed|auth_g_create|configuration"
        " source|fetch_config|resolve_ctls_from_dns_srv|communication connection failure|zero bytes"
        " were transmitted|protocol authentication error|invalid authentication"
        " credential|munge.socket|unable to establish control|unable to process configuration"
        " file|incompatible versions of client",
        r"Unable to contact slurm controller|Munge encode failed|auth_g_create: .*authentication"
        r" error"
        r"|Socket timed out on send/recv operation|Could not establish a configuration source"
        r"|fetch_config: DNS SRV lookup failed|resolve_ctls_from_dns_srv: .*error|Communication"
        r" connection failure"
        r"|Zero Bytes were transmitted or received|Protocol authentication error|Invalid"
        r" authentication credential"
        r"|munge\.socket\S* ?.*(?:No such file|refused|denied)|Unable to establish control(?:ler)?"
        r" machine"
        r"|Unable to process configuration file|Incompatible versions of client and server code",
        what="Slurm does not answer, is not set up on this host, or does not accept it",
        fix=(
            "scontrol ping, and munge -n on this host; wait a minute and try again; then tell the"
            " operators"
        ),
        tier=Tier.COARSE,
    ),
    cause(
        "slurm-unavailable",
        ": fatal: ",
        r"(?:sbatch|srun|salloc|squeue|sinfo|sacct|scontrol|scancel): fatal: (?P<reason>.+)",
        what="Slurm's command could not work on this host: {reason}",
        fix="scontrol ping; the same command on a login node; then tell the operators",
        tier=Tier.BROAD,
    ),
    cause(
        "slurm-refused",
        "sbatch: error: |salloc: error: ",
        r"(?:sbatch|salloc): error: (?P<reason>.+)",
        what="Slurm refuses the request: {reason}",
        fix=_COMPARE,
        tier=Tier.UNCLEAR,
        key="refused-in-other-words",
    ),
    cause(
        "missing-srun",
        "unable to confirm allocation|invalid job id specified|srun: command not found|srun: not"
        ' found|usable "srun" command',
        r"usable \"srun\" command in its path|srun: (?:(?:command )?not found"
        r"|error: .*(?:Unable to confirm allocation|Invalid job id))",
        what="srun does not work here: no Slurm job around it",
        fix="start it inside a job: sbatch job.sh, or salloc first",
        tier=Tier.COARSE,
    ),
    note("submitted", "submitted batch job", r"Submitted batch job \d+"),
)
