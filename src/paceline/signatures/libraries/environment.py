"""Signatures of Python environments, libraries and launch settings of the machine."""

from __future__ import annotations

from paceline.signatures.signature import Signature, cause
from paceline.signatures.tier import Tier

SIGNATURES: tuple[Signature, ...] = (
    cause(
        "library-version-mismatch",
        "undefined symbol|glibcxx|glibc_|version `|numpy.dtype size changed|compiled using"
        " numpy|cannot import name|torch._six|versionconflict|is required for a normal"
        " functioning|has no attribute|cannot open shared object|incompatible|symbol not"
        " found|cxxabi",
        r"undefined symbol:? *(?!p?nccl)(?P<symbol>\w+)|version `(?P<version>(?:GLIBCXX|GLIBC"
        r"|CXXABI)[^']*)' not found"
        r"|numpy\.\w+ size changed|compiled using NumPy 1\.x cannot be run"
        r"|cannot import name '\w+' from 'torch\._six'"
        r"|No module named 'torch\._six'|(?:Contextual)?VersionConflict"
        r"|is required for a normal functioning of this module"
        r"|module 'numpy' has no attribute|(?:ImportError|OSError"
        r"|shared libraries): (?P<library>lib\w\S*\.so\S*): cannot open shared object"
        r"|(?:torch\w*|numpy|CUDA) .*(?:is|are) incompatible with|compiled with different CUDA"
        r" versions"
        r"|operator torchvision::nms does not exist|Couldn't load custom C\+\+ ops",
        what=(
            "a compiled library does not fit another one: {symbol} is missing",
            "a compiled library needs {version}, which this system does not have",
            "the library {library} is not there",
            "installed packages do not fit each other",
        ),
        fix=(
            "install torch and what is compiled against it (torchvision, flash-attn, apex, numpy)"
            " from one index, in a fresh environment"
        ),
        unless=r"user-provided|Warning:|warn",
    ),
    cause(
        "library-version-mismatch",
        "has been removed|unexpected keyword argument|cannot import name|has no attribute",
        r"(?:ImportError: cannot import name '(?P<name>\w+)' from '(?P<package>[\w.]+)'"
        r" \((?P<path>[^)]*(?:site"
        r"|dist)-packages[^)]*)\))",
        what="{package} as installed has no {name}: the packages do not fit each other",
        fix="pip show {package}: install the version that the program was written for",
        tier=Tier.COARSE,
    ),
    cause(
        "wrong-python-env",
        "command not found|no such file or directory",
        r"(?:bash|sh|slurm_script|line \d+)\S*:?"
        r" .*?(?P<program>\b(?:torchrun|python3?|accelerate|deepspeed"
        r"|fabric|lightning|composer|conda|mpirun))"
        r": (?:command )?not found|(?P<other>\b(?:torchrun|python3?|accelerate|deepspeed)): No such"
        r" file or directory"
        r"|execve\(\): (?P<exec>\S+): No such file|(?P<venv>\S+/bin/activate): No such file or"
        r" directory",
        what=(
            "{venv} is not there: the Python environment does not exist on this node",
            "{program} is not found: the Python environment is not active there",
            "{other} is not found: the Python environment is not active there",
            "{exec} is not found on the node",
        ),
        fix=(
            "activate the environment in the job script before the start, or name the program in"
            " full: $VIRTUAL_ENV/bin/torchrun"
        ),
        unless=r"FATAL: ",
    ),
    cause(
        "broken-line-continuation",
        "command not found|: not found",
        r"(?:line )?\d+: (?P<option>-{1,2}[\w-][^\s:]*|\+{0,2}(?=[a-z])[\w./]+=[^\s:]*): (?:command"
        r" )?not found",
        what="{option} was read as a command of its own: the line before it does not go on",
        fix=(
            "end every line of the command but the last in a backslash with nothing behind it: grep"
            " -n '\\\\ $' SCRIPT"
        ),
        why="a blank or a comment behind the backslash, or a missing one, ends the command there",
    ),
    cause(
        "unset-variable",
        "unbound variable|parameter not set|parameter null or not set",
        r"(?:line )?(?P<line>\d+): (?P<name>\w+): (?:unbound variable|parameter (?:null or )?not"
        r" set)",
        what="the job script uses ${name}, which is not set",
        fix="set {name} before line {line}, or give it a value there: ${{{name}:-VALUE}}",
        why="under set -u the shell ends at a variable without a value",
    ),
    cause(
        "script-missing",
        "can't open file|no such file",
        r"can't open file '(?P<file>[^']+)': \[Errno 2\]",
        what="the script {file} does not exist on the node that starts it",
        fix=(
            "give the full path, or cd to the folder first (sbatch: cd $SLURM_SUBMIT_DIR);"
            " containers need it mounted"
        ),
    ),
    cause(
        "option-unknown",
        "torchrun|launch.py|accelerate|run.py|deepspeed",
        r"^(?:torchrun|launch\.py|run\.py|accelerate(?:"
        r" <command>.*)?|accelerate-launch|deepspeed|lightning"
        r"|fabric)\b.*: error: "
        r"(?:unrecognized arguments|ambiguous option|argument \S+: invalid"
        r"|the following arguments are required)[: ]*(?P<arguments>.+)",
        what="the launcher does not know, or lacks, {arguments}",
        fix="torchrun --help lists the options; those of the script stand behind the script's name",
    ),
    cause(
        "option-unknown",
        "error: unrecognized arguments",
        r"(?P<script>[\w./-]+\.py): error: unrecognized arguments: (?P<arguments>.{1,120})",
        what="{script} does not know the arguments {arguments}",
        fix=(
            "python {script} --help lists those that it knows; options of the launcher stand before"
            " the script's name"
        ),
        tier=Tier.COARSE,
        unless=r"^(?:launch|run)\.py",
    ),
    cause(
        "user-exception",
        ".py: error:",
        r"(?P<script>[\w./-]+\.py): error: (?P<error>(?:the following arguments are"
        r" required|argument \S+|one of the)"
        r".{1,160})",
        what="{script} refuses its arguments: {error}",
        fix="python {script} --help lists what it wants",
        tier=Tier.COARSE,
    ),
    cause(
        "interface-missing-on-node",
        "could not find interface|no such interface|ifname",
        r"(?:could not find|no such) interface:? *(?P<interface>\S+)",
        what="the interface {interface} does not exist on this node",
        fix="ip -br addr lists those of the node",
        tier=Tier.HINTED,
    ),
    cause(
        "environment-module-unknown",
        "module(s) are unknown|unable to locate a modulefile|cannot be loaded as requested|module:"
        " command not found|module: not found",
        r"module\(s\) are unknown:? *(?P<modules>\"[^\"]+\"(?: \"[^\"]+\")*)?"
        r"|Unable to locate a modulefile for '(?P<module>[^']+)'"
        r"|exist but cannot be loaded as requested:? *(?P<needed>\"[^\"]+\")?|module: (?:command"
        r" )?not found",
        what=(
            "the environment module {modules} does not exist on this node",
            "the environment module '{module}' does not exist on this node",
            "the environment module {needed} needs other modules to be loaded before it",
            "an environment module of the job script could not be loaded",
        ),
        fix=(
            "module spider NAME (or module avail NAME) on that node lists the versions, and what to"
            " load before it"
        ),
        why=(
            "what the module would have brought (Python, CUDA, a compiler) is missing in what"
            " follows"
        ),
        tier=Tier.HINTED,
    ),
    cause(
        "conda-activate-without-hook",
        "conda activate|conda init|condaerror",
        r"shell has not been properly configured to use 'conda activate'|Run 'conda init' before"
        r" 'conda activate'",
        what="conda activate did nothing: the shell of the job has not been set up for conda",
        fix='before it: eval "$(conda shell.bash hook)"',
        why="the job then runs with the Python that it finds, not with the environment's",
        tier=Tier.HINTED,
    ),
    cause(
        "wrong-python-env",
        "could not find conda environment|environmentlocationnotfound|not a conda environment",
        r"Could not find conda environment: (?P<name>\S+)|Not a conda environment: (?P<path>\S+)",
        what=("there is no conda environment {name}", "there is no conda environment {path}"),
        fix="conda env list on the node shows those that it sees",
        tier=Tier.HINTED,
    ),
    cause(
        "container-not-started",
        "container creation failed|could not open image|while making image|while"
        " extracting|nvidia-container-cli|error response from"
        " daemon|pyxis:|enroot-|squashfuse|fatal:",
        r"FATAL: +(?P<reason>(?:container creation failed|could not open image|image driver|while"
        r" (?:extracting"
        r"|loading"
        r"|mounting|making|checking|performing)|unable to (?:handle|build|open)|failed to"
        r" (?:create|retrieve"
        r"|open)|kernel too old|stat /)"
        r".{0,200})|(?P<cli>nvidia-container-cli: .{1,200})|Error response from daemon:"
        r" (?P<daemon>.{1,200})"
        r"|pyxis: (?P<pyxis>(?:couldn't|could not|failed|container).{0,200})|(?P<fuse>fuse: device"
        r" not found)",
        what=(
            "the container did not start: {reason}",
            "the container did not start: {cli}",
            "the container did not start: {daemon}",
            "the container did not start: {pyxis}",
            "the container did not start: {fuse}",
        ),
        fix=(
            "start a shell in the same container on that node: apptainer exec --nv IMAGE bash;"
            " check the image's path, its binds and its size"
        ),
        why="the program inside has not run",
        unless=r"No space left|quota exceeded",
    ),
    cause(
        "wrong-python-env",
        "executable file not found in $path",
        r"[\"'](?P<program>[\w./-]+)[\"']: executable file not found in \$PATH",
        what="{program} is not in the container",
        fix="apptainer exec IMAGE which {program}; name it in full, or take an image that has it",
    ),
    cause(
        "gpus-fewer-than-processes",
        "could not find any nv files|could not find any nv libraries|could not select device"
        " driver",
        r"[Cc]ould not find any nv (?:files|libraries)|could not select device driver .*gpu",
        what="the container sees no NVIDIA driver",
        fix=(
            "nvidia-smi on the node itself; apptainer exec --nv, or docker run --gpus all with the"
            " NVIDIA toolkit"
        ),
        tier=Tier.HINTED,
    ),
    cause(
        "torch-missing",
        "no module named 'torch'|no module named torch",
        r"No module named '?torch'?(?:$|[^.\w])",
        what="torch is not installed in the Python that runs here",
        fix=(
            "activate the environment that has torch before the start; which python tells which one"
            " runs"
        ),
        why="the launcher or the job script uses another Python than the one with torch",
    ),
)
