"""Signatures of the shell and of ssh launchers: programs that do not start or end by a signal."""

from __future__ import annotations

from paceline.signatures.signature import Signature, cause
from paceline.signatures.tier import Tier

_START = r"(?:^|(?<=[\]:)] )|(?<=\]:)|(?<=>:)|(?<=Z ))"  # of a line, after the labels of launchers
_PROGRAM = (
    r"(?:python|torchrun|accelerate|deepspeed|lightning|composer|mpirun|srun|bash|\./|CUDA_VISIBLE)"
)

SIGNATURES: tuple[Signature, ...] = (
    cause(
        "rank-died-signal",
        "illegal instruction|exit code 132|status 132",
        r"(?:^|[:\]] ?|\d |Z |\) )\s*(?P<fault>Illegal instruction)(?: *\(core dumped\))?(?:\s|$)"
        r"|Fatal Python error: (?P<python>Illegal instruction)|(?:exit code|status) 132\b",
        what=(
            "a process was ended by SIGILL: a compiled library uses instructions that this CPU does"
            " not have (likely)"
        ),
        fix=(
            "python -X faulthandler script.py prints the stack; compare lscpu of this node with the"
            " machine on which the library was built, and install one that is built for less"
        ),
        why="a binary that is built for a newer CPU (AVX2, AVX-512) ends so on an older one",
        tier=Tier.CRASH,
        unless=r"CUDA error|HIP error",
    ),
    cause(
        "rank-died-signal",
        "floating point exception|breakpoint trap|bad system call|cpu time limit exceeded|file size"
        " limit exceeded|exit code 136|status 136",
        r"(?:^|[:\]] ?|\d |Z |\) )\s*(?P<signal>Floating point exception|Trace/breakpoint trap|Bad"
        r" system call"
        r"|CPU time limit exceeded|File size limit exceeded)(?: *\(core dumped\))?(?:\s|$)"
        r"|Fatal Python error: (?P<python>Floating point exception)|(?:exit code|status) 136\b",
        what=(
            "a process was ended by a signal: {signal}",
            "a process was ended by a signal: {python}",
            "a process was ended by a signal: Floating point exception",
        ),
        fix="python -X faulthandler script.py prints the stack; for a limit: ulimit -a",
        tier=Tier.CRASH,
        unless=r"FloatingPointError",
    ),
    cause(
        "rank-died-signal",
        "terminated",
        rf"(?:line \d+:|\]\+?) +\d* ?Terminated\s+\S*{_PROGRAM}",
        what="the program was ended by SIGTERM",
        fix=(
            "who sent it: the scheduler (sacct -j JOB -o State), timeout, a person, or a kill in"
            " the script itself"
        ),
        tier=Tier.UNEXPLAINED,
        key="exit--15",
    ),
    cause(
        "script-syntax-error",
        "syntax error near unexpected|syntax error: unexpected|unexpected eof while looking|word"
        " unexpected",
        r"(?:line )?(?P<line>\d+): (?:[Ss]yntax error(?: near unexpected token|: unexpected|: \S+"
        r" unexpected)"
        r"|unexpected EOF while looking for matching)",
        what="the shell cannot read the job script: a syntax error in line {line}",
        fix=(
            "bash -n SCRIPT shows the place: a quote, a bracket, a fi or a done may be missing"
            " above it"
        ),
    ),
    cause(
        "user-exception",
        "permission denied",
        rf"{_START}(?:\S*(?:bash|sh|slurm_script): )?(?:\S+: )?line \d+: (?P<file>[\w./-]+):"
        r" Permission denied"
        rf"|{_START}(?:-?(?:ba|z|da)?sh|sudo): (?:\d+: )?(?P<script>[\w./-]+): Permission denied"
        r"|execve\(\): (?P<exec>\S+): Permission denied",
        what=(
            "the shell may not run or write {file}",
            "the shell may not run or write {script}",
            "{exec} may not be run on the node",
        ),
        fix=(
            "ls -l FILE: chmod +x it, or start it as bash FILE; the folder may be mounted noexec,"
            " or be another user's"
        ),
        tier=Tier.COARSE,
    ),
    cause(
        "wrong-python-env",
        "bad interpreter|exec format error",
        r"(?P<program>\S+): (?P<python>/\S+): bad interpreter: (?!.*\^M)"
        r"|(?P<exec>\S+): (?:cannot execute binary file(?:: Exec format error)?|Exec format error)",
        what=(
            "{program} belongs to a Python that is not there: {python}",
            (
                "{exec} is no program that this machine can run: it is for another CPU, or lacks"
                " its first line #!"
            ),
        ),
        fix=(
            "make the environment anew where it runs (an environment that was moved or copied keeps"
            " its old paths); python -m torch.distributed.run does without the script; uname -m"
            " tells the CPU"
        ),
        unless=r"\^M",
    ),
    cause(
        "folder-not-writable",
        "mkdir: |cp: |mv: |touch: |ln: |tee: |permission denied|read-only file system",
        r"\b(?P<program>mkdir|cp|mv|touch|ln|tee|tar|rsync): (?P<reason>.{1,200}?: (?:Permission"
        r" denied"
        r"|Read-only file system))",
        what="{program} could not write: {reason}",
        fix="write to a folder that the job may write: touch FOLDER/x on the node tells",
        tier=Tier.HINTED,
    ),
    cause(
        "script-missing",
        "no such file or directory",
        rf"{_START}(?:-?\S*sh: |\S+: )(?:(?:line )?\d+:"
        r" )?(?P<file>[\w./-]+\.(?:sh|py|bash|sbatch)|\./[\w./-]+): "
        r"No such file or directory",
        what="the script {file} does not exist on the node that starts it",
        fix=(
            "give the full path, or cd to the folder first (sbatch: cd $SLURM_SUBMIT_DIR);"
            " containers need it mounted"
        ),
        tier=Tier.HINTED,
        unless=r"Error|Errno|\b(?:ls|cp|mv|cat|rm|chmod|tar|source|grep): ",
    ),
    cause(
        "user-exception",
        "cd: ",
        r"line \d+: cd: (?P<folder>\S+): (?P<reason>No such file or directory|Permission denied|Not"
        r" a directory)",
        what="the job script cannot enter {folder}: {reason}",
        fix=(
            "ls -ld FOLDER on the node; set -e in the script ends it there, and what follows is not"
            " misled"
        ),
        tier=Tier.SUSPECTED,
    ),
    cause(
        "user-exception",
        "no matching distribution|failed building wheel|no solution"
        " found|packagesnotfounderror|resolvepackagenotfound"
        "|unsatisfiableerror|resolutionimpossible",
        r"(?P<error>No matching distribution found for \S+|Failed building wheel for \S+"
        r"|No solution found when resolving"
        r"|PackagesNotFoundError|ResolvePackageNotFound|UnsatisfiableError|ResolutionImpossible)",
        what="an installation failed: {error}",
        fix=(
            "install into a fresh environment before the job, and start the job in it; read the"
            " lines above and below"
        ),
        tier=Tier.SUSPECTED,
        key="installation",
    ),
    cause(
        "wrong-python-env",
        "failed to spawn",
        r"Failed to spawn: `(?P<program>[^`]+)`",
        what="{program} is not in the environment that uv uses",
        fix="uv pip list; uv add torch, or activate the environment that has it",
        tier=Tier.HINTED,
    ),
    cause(
        "wrong-python-env",
        "command not found|: not found",
        rf"{_START}(?:\S*sh: (?:(?:line )?\d+: )?|\S+: (?:line )?\d+:"
        r" )(?P<program>[A-Za-z][\w.+-]*): "
        r"(?:command )?not found",
        what=(
            "{program} is not found: it is not installed on this node, or not in the PATH of"
            " the job"
        ),
        fix=(
            "which {program} on the node; load the module or activate the environment that has it"
            " in the job script"
        ),
        tier=Tier.UNCLEAR,
        unless=r"\bmodule: ",
    ),
    cause(
        "container-not-started",
        "exec format error",
        rf"{_START}exec /\S+: exec format error",
        what="the container did not start: its image is for another kind of CPU",
        fix="uname -m on the node; docker pull --platform linux/amd64, or an image for this CPU",
    ),
    cause(
        "module-not-found",
        "no module named",
        rf"{_START}\S*python[\w.]*(?:\.exe)?: No module named (?P<module>[\w.]+)"
        rf"|{_START}\S*python[\w.]*(?:\.exe)?: Error while finding module specification for"
        r" '(?P<spec>[^']+)'",
        what=(
            "there is no module {module} in the Python that runs",
            "python -m finds no module {spec}",
        ),
        fix=(
            "which python tells which one that is; python -m wants a module's name"
            " (package.module), not a file's"
        ),
        tier=Tier.COARSE,
    ),
    cause(
        "node-missing",
        "permission denied (|host key verification failed|ssh: connect to host|connection"
        " closed by",
        r"(?:^|\b)(?P<node>[\w.-]+)(?:@[\w.-]+)?: (?:\S+: )?(?P<reason>Permission denied"
        r" \([\w,-]*(?:publickey"
        r"|password|gssapi)[^)]*\)|Host key verification failed)"
        r"|(?P<denied>Permission denied \([\w,-]*publickey[^)]*\))|^(?P<key>Host key verification"
        r" failed)"
        r"|ssh: connect to host (?P<host>\S+) port (?P<port>\d+): (?P<error>[\w ]+)",
        what=(
            "the launcher cannot log in to {node} over ssh: {reason}",
            "the launcher cannot log in to a node over ssh: {denied}",
            "the launcher cannot log in to a node over ssh: {key}",
            "the launcher cannot reach {host}, port {port}, over ssh: {error}",
        ),
        fix=(
            "ssh NODE true from the first node must work without a question: ssh-copy-id NODE,"
            " ssh-keyscan NODE >> ~/.ssh/known_hosts; or start the program on each node without ssh"
        ),
        why="launchers like DeepSpeed's start the other nodes over ssh",
        tier=Tier.OUTSIDE,
        unless=r"git@|github|gitlab|rsync",
    ),
    cause(
        "user-exception",
        "is not in struct|could not override|error merging override|primary config|missing"
        " mandatory value|could not load",
        rf"{_START}(?P<error>Could not override '[^']*'\.?|Key '[^']+' is not in struct|Error"
        r" merging override "
        r".{1,120}"
        r"|Missing mandatory value: \S+|Primary config (?:directory|module) .{1,80}not found.*"
        r"|Cannot find primary config.{0,80}|Could not load '[^']+'\.?)",
        what="Hydra refuses the configuration: {error}",
        fix=(
            "python SCRIPT --cfg job shows the configuration; +key=value adds a key that it does"
            " not have"
        ),
        tier=Tier.DOUBTFUL_EXCEPTION,
    ),
    cause(
        "option-unknown",
        "error: no such option|error: got unexpected extra argument",
        rf"{_START}Error: (?:No such option:? *(?P<option>\S+)|Got unexpected extra arguments?"
        r" \((?P<extra>[^)]*)\))",
        what=(
            "the program does not know the option {option}",
            "the program does not know the arguments {extra}",
        ),
        fix="its --help lists those that it knows",
        tier=Tier.COARSE,
    ),
    cause(
        "user-exception",
        "error: missing|error: invalid value|error: unrecognized arguments|error:"
        " argument|arguments are required",
        rf"{_START}Error: (?P<click>(?:Missing (?:option|argument|parameter|command)|Invalid value"
        r" for) .{1,160})"
        rf"|{_START}[\w-]+: error: (?P<argparse>(?:unrecognized arguments: |the following arguments"
        r" are required: "
        r"|argument \S+: (?:invalid|expected|not allowed)).{1,160})",
        what=(
            "the program refuses its arguments: {click}",
            "the program refuses its arguments: {argparse}",
        ),
        fix="its --help lists what it wants",
        tier=Tier.COARSE,
        unless=rf"{_START}(?:torchrun|accelerate|deepspeed|lightning|fabric|srun|sbatch)\b"
        rf"|--local[-_]rank",
    ),
    cause(
        "gpus-fewer-than-processes",
        "no slot '|no available node types can fulfill|couldn't communicate with the nvidia driver",
        r"No slot '(?P<slot>\d+)' specified on host '(?P<host>[^']+)'"
        r"|No available node types can fulfill resource request.*?'GPU': (?P<want>[\d.]+)"
        r"|couldn't communicate with the NVIDIA driver",
        what=(
            "the launcher is told to use GPU {slot} of {host}, which has fewer",
            "no node of the Ray cluster has the {want} GPUs that are asked for",
            "no GPU can be used: the NVIDIA driver does not answer",
        ),
        fix=(
            "nvidia-smi -L on the node: ask for as many as it lists (deepspeed --include,"
            " --num_gpus; Ray: num_gpus)"
        ),
        tier=Tier.HINTED,
    ),
)
