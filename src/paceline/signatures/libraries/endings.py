"""Signatures of process ends: signals, exit codes, and the launchers' reports about them."""

from __future__ import annotations

from paceline.signatures.libraries.native import THREAD_LIMIT_FIX, THREAD_LIMIT_WHY
from paceline.signatures.signature import Signature, cause, note
from paceline.signatures.tier import Tier

_ELSEWHERE = (
    "look in the output of that rank: torchrun --log-dir logs --redirects 3, or wrap main with"
    " @record"
)
_NATIVE = (
    "python -X faulthandler script.py prints the stack of the crash; gdb -batch -ex run -ex bt"
    " --args python script.py"
)
_WHO = (
    "dmesg -T | grep -i -E 'oom|killed' on the node, and sacct -o State,MaxRSS, tell whether memory"
    " ran out"
)
_HUNG = (
    "nothing, if it was you; if it seemed to hang: paceline run says where, or py-spy dump --pid"
    " PID on every rank"
)

SIGNATURES: tuple[Signature, ...] = (
    cause(
        "sighup-terminal-closed",
        "sighup|received 1 death signal|hangup|got signal: 1",
        r"closing signal SIGHUP|Received 1 death signal|Signals?\.?SIGHUP|got signal: 1\b|:"
        r" Hangup\b|signal: SIGHUP",
        what="the terminal that started the run was closed (SIGHUP)",
        fix="start it in tmux or screen, or with nohup ... & disown, or through the scheduler",
        tier=Tier.OUTSIDE,
        key="stop",
    ),
    cause(
        "rank-died-signal",
        "keyboardinterrupt|received 2 death signal|got signal: 2|sigint",
        r"^\W*(?:\^C)?KeyboardInterrupt|Received 2 death signal|got signal: 2\b|closing signal"
        r" SIGINT"
        r"|[Rr]eceived SIGINT\b",
        what="the run was ended by Ctrl-C (or SIGINT)",
        fix=_HUNG,
        tier=Tier.STOPPED,
        key="stopped-by-hand",
    ),
    cause(
        "rank-died-signal",
        "received 15 death signal|got signal: 15|received sigterm",
        r"Received (?P<signal>15) death signal|got signal: (?P<number>15)\b|[Rr]eceived"
        r" (?P<term>SIGTERM)\b",
        what=(
            "the run was stopped from outside: signal {signal}",
            "the run was stopped from outside: signal {number}",
            "the run was stopped from outside: {term}",
        ),
        fix=(
            "who stopped it: sacct -j JOB -o State,Comment, the shell's history, the queue's"
            " preemption log"
        ),
        tier=Tier.STOPPED,
        key="stopped",
    ),
    cause(
        "rank-segfault",
        "segmentation fault|sigsegv|signal 11|exitcode: -11|exitcode  : -11|exit code -11|exit code"
        " 139|status 139|return code",
        r"(?P<fault>Segmentation fault)|exitcode *: *-11 .*?local_rank: *(?P<local>\d+)"
        r"|failed \(exitcode: -11\) local_rank: "
        r"(?P<failed>\d+)|(?:exitcode *:? *|exit code:? |return code *=? *)-11|SIGSEGV|[Ss]ignal"
        r" 11\b"
        r"|(?:exit code|status) 139",
        what=(
            "local rank {failed} crashed in native code (SIGSEGV, exit code -11)",
            "a rank crashed in native code (SIGSEGV)",
        ),
        fix=_NATIVE,
        why="an extension, a driver or a version that does not fit; Python cannot say where",
        tier=Tier.CRASH,
        key="exit--11",
        unless=r"potential root causes",
    ),
    cause(
        "rank-died-signal",
        "exitcode: -9|exitcode  : -9|exit code -9|sigkill|signal 9|exit code 137|exited with code"
        " -9|return code = -9|exits with return code|terminated with signal|died with"
        " <signals.sigkill",
        r"failed \(exitcode: -9\) local_rank: (?P<failed>\d+)|exitcode *:? *-9\b|(?:exit|exited"
        r" with"
        r"|return) code:? *=? *-9\b|"
        r"[Ss]ignal 9 \(SIGKILL\) received by PID (?P<pid>\d+)|died with <Signals\.SIGKILL|(?:exit"
        r" code"
        r"|status) 137|[Ss]ignal:? 9\b"
        r"|\(SIGKILL\)|terminated with signal SIGKILL",
        what=(
            (
                "local rank {failed} was killed (SIGKILL, exit code -9): mostly because host memory"
                " ran out"
            ),
            "process {pid} was killed (SIGKILL): mostly because host memory ran out",
            "a rank was killed (SIGKILL): mostly because host memory ran out",
        ),
        fix=_WHO,
        why="the one who sends SIGKILL leaves no word in the program's own output",
        tier=Tier.CRASH,
        key="exit--9",
        unless=r"forcefully exit|Unable to shutdown",
    ),
    cause(
        "rank-died-signal",
        "killed",
        r"(?:^|\s|: )(?:\d+ )?Killed(?:\s*$|(?<=\d Killed)\s+\S|\s+(?:\(core dumped\)"
        r" *)?(?:\S*python|torchrun"
        r"|accelerate|deepspeed"
        r"|srun|mpirun|bash|\./|CUDA_VISIBLE)\S*)",
        what="a process was killed (SIGKILL): mostly because host memory ran out",
        fix=_WHO,
        why="the one who sends SIGKILL leaves no word in the program's own output",
        tier=Tier.CRASH,
        unless=r"by signal|oom",
    ),
    cause(
        "dataloader-shm-too-small",
        "exitcode: -7|exitcode  : -7|exit code -7|exit code 135|status 135|sigbus|signal 7|return"
        " code",
        r"(?:exitcode *: *|return code *=? *|exit code *)-7\b|(?:exit code|status):? 135\b"
        r"|\(SIGBUS\)|[Ss]ignal 7\b",
        what="a rank ended with a bus error (SIGBUS), mostly because /dev/shm is full (likely)",
        fix="df -h /dev/shm on the node; docker run --shm-size=8g, or fewer DataLoader workers",
        tier=Tier.CRASH,
        key="exit--7",
    ),
    cause(
        "rank-died-signal",
        "exitcode: -|exitcode  : -|signal 4|signal 8|sigill|sigfpe",
        r"exitcode *: *-(?P<number>4|8|3|5)\b|\((?P<signal>SIGILL|SIGFPE|SIGTRAP)\)",
        what=("a rank was ended by {signal}", "a rank was ended by signal {number}"),
        fix=_NATIVE,
        tier=Tier.CRASH,
    ),
    cause(
        "rank-died-signal",
        "exitcode: -6|exitcode  : -6|exit code 134|status 134|sigabrt|signal 6|core"
        " dumped|aborted|return code",
        r"(?:exitcode *: *|return code *=? *)-6\b|died with"
        r" <Signals\.SIGABRT|\(SIGABRT\)|[Ss]ignal 6\b"
        r"|Aborted \(core dumped\)|Aborted *$|(?:exit code|status) 134\b",
        what="a rank aborted itself (SIGABRT); the line before the abort tells why",
        fix="look at the last lines of that rank's own output, above the stack of C++ frames",
        tier=Tier.ABORTED,
        key="exit--6",
    ),
    cause(
        "rank-segfault",
        "free()|malloc|corrupted|double free|stack smashing",
        r"(?P<error>free\(\): invalid (?:pointer|size|next size)|double free or"
        r" corruption|malloc\w*\(\): [\w ]+"
        r"|corrupted (?:size vs\. "
        r"prev_size|double-linked list)|stack smashing detected)",
        what="a rank crashed in native code: {error}",
        fix=_NATIVE,
        why="a compiled library wrote where it must not",
        tier=Tier.CRASH,
    ),
    cause(
        "rank-died-signal",
        "terminate called",
        r"terminate called after throwing an instance of '(?P<type>[^']+)'",
        what="a rank aborted on a C++ exception, {type}",
        fix="the line after it, what(), tells why",
        tier=Tier.ABORTED,
        unless=r"DistBackendError|gloo|c10::Error",
    ),
    cause(
        "rank-died-signal",
        "terminate called without",
        r"terminate called without an active exception",
        what="a rank aborted because a thread was still running when its owner was freed",
        fix=(
            "if the last lines of the training are above it, its work is done, and under paceline"
            " run it ends with status 0; otherwise look for an error above it"
        ),
        why="the threads of gloo do this at the end of a process, at times, on CPUs (torch 2.13)",
        tier=Tier.ABORTED,
    ),
    cause(
        "rank-died-signal",
        "exitcode: -15|exitcode  : -15|sigterm|signal 15|exit code 143",
        r"exitcode *: *-15\b|\(SIGTERM\)|closing signal SIGTERM|exit code 143|died with"
        r" <Signals\.SIGTERM"
        r"|Received SIGTERM: 15"
        r"|Bypassing SIGTERM",
        what="ranks were ended by SIGTERM",
        fix=(
            "who sent it: the scheduler (sacct -j JOB -o State), a person, or the launcher after"
            " another rank had failed"
        ),
        why="a launcher ends the other ranks so when one has failed",
        tier=Tier.UNEXPLAINED,
        key="exit--15",
    ),
    cause(
        "rank-died-signal",
        "exitcode: -2|exitcode  : -2",
        r"exitcode *: *-2\b",
        what="the run was ended by Ctrl-C (or SIGINT)",
        fix=_HUNG,
        tier=Tier.STOPPED,
        key="exit--2",
    ),
    cause(
        "cpu-starved",
        "pthread_create failed|can't start new thread|fork: retry|resource temporarily unavailable",
        r"pthread_create failed|can't start new thread|fork: (?:retry: )?Resource temporarily"
        r" unavailable",
        what=(
            "no more threads or processes can be started: the limit of the user or of the job is"
            " reached"
        ),
        fix=THREAD_LIMIT_FIX,
        why=THREAD_LIMIT_WHY,
    ),
    cause(
        "user-exception",
        "bdbquit",
        r"\bBdbQuit\b",
        what="the debugger (pdb, breakpoint()) got no input, and quit",
        fix=(
            "take breakpoint() out, or start the script in a terminal without a launcher: python"
            " script.py"
        ),
        why="ranks have no terminal for input: each would have to type to its own debugger",
        key="bdbquit",
    ),
    cause(
        "rank-died-signal",
        "signalexception",
        r"SignalException",
        what="the run was stopped from outside",
        fix="who stopped it: sacct -j JOB -o State, the shell's history",
        tier=Tier.STOPPED,
    ),
    cause(
        "rank-died-signal",
        "actor died|worker died|actor is dead|worker exit type",
        r"The actor died (?:unexpectedly|because)|A worker died or was killed"
        r"|actor is dead because its (?:worker process|node)|"
        r"Worker exit type: SYSTEM_ERROR",
        what="a Ray worker process died, and its own output does not say why here",
        fix=(
            "ray logs, or the worker's file in /tmp/ray/session_latest/logs; dmesg -T | grep -i oom"
            " on its node"
        ),
        tier=Tier.SUSPECTED,
    ),
    cause(
        "sighup-terminal-closed",
        "exitcode: -1 |exitcode  : -1 |exitcode: -1)|exitcode  : -1(",
        r"exitcode *: *-1\b.*",
        what="a rank was ended by SIGHUP: the terminal that started the run was closed",
        fix="start it in tmux or screen, or through the scheduler",
        tier=Tier.STOPPED,
    ),
    cause(
        "launcher-summary-only",
        "killing subprocess|childfailederror|conda run|exited with exit code|error_file|to enable"
        " traceback see|with no error file|root cause (first observed failure)|exitcode|exits with"
        " return code|calledprocesserror|child process with"
        " pid|processexitedexception|processraisedexception|died with exit|exited with code|primary"
        " job|worker group failed|non-zero exit|returned non-zero|had an error|process 0"
        " terminated|terminated with the following error|task exited",
        r"ChildFailedError|Root Cause \(first observed failure\)|Primary job\s+terminated normally"
        r"|exited with exit code [1-9]|`conda run .*` failed"
        r"|error_file *: *<N/A>|To enable traceback see|FAILED with no error file|exitcode *:"
        r" *[1-9]\d*"
        r"|[Kk]illing subprocess|exits with return code *=? *[1-9]|CalledProcessError"
        r"|Child process with PID \d+ terminated with code"
        r"|Process(?:Exited|Raised)Exception|process \d+ terminated with exit code [1-9]|exited"
        r" with code [1-9]\d*"
        r"|returned a? ?non-zero (?:exit )?(?:code|status)|exited with non-zero (?:exit"
        r" )?(?:code|status)"
        r"|Worker group failed|Process \d+ terminated with the following error|task.*exited with a"
        r" non-zero",
        what="the launcher says that a rank failed; the error itself is not in this text",
        fix=_ELSEWHERE,
        why="torchrun repeats a traceback only if the rank wrote an error file (@record on main)",
        tier=Tier.SUMMARY,
        key="summary",
    ),
    cause(
        "launcher-summary-only",
        " above|sigquit from a child",
        r"see (?:the )?(?:root cause|(?:actual |original )?error) above|Received sigquit from a"
        r" child proces",
        what="the text says that the cause was printed before it, and it is not in this text",
        fix="look further up in the full output, and at the output of the other processes",
        tier=Tier.SUMMARY,
        key="summary-above",
    ),
    cause(
        "peer-rank-died",
        "terminated with code|forcefully terminating|avoid zombies",
        r"Child process with PID \d+ terminated with code (?P<code>-?\d+)\. Forcefully terminating",
        what=(
            "a rank ended with code {code}, and its launcher ended the others; the error itself is"
            " not in this text"
        ),
        fix="look for the traceback of the rank that ended first, in the output of all ranks",
        tier=Tier.UNEXPLAINED,
    ),
    note("exit", "exitcode", r"exitcode *: *(?P<code>-?\d+)\)? .*?(?:local_rank: (?P<local>\d+))?"),
    note(
        "table-rank",
        "rank      :|rank :|rank  ",
        r"^\s*rank\s*: *(?P<rank>\d+) \(local_rank: *(?P<local>\d+)\)",
    ),
    note("table-host", "host      :|host ", r"^\s*host\s*: *(?P<host>\S+)"),
    note("table-time", "time      :|time ", r"^\s*time\s*: *(?P<time>[\d-]+_[\d:]+)"),
    note("forced", "unable to shutdown process", r"Unable to shutdown process \d+ via .*SIGKILL"),
    note("root-cause", "root cause (first observed", r"Root Cause \(first observed failure\)"),
    note(
        "table-exit",
        "exitcode  :|exitcode ",
        r"^\s*exitcode\s*: *(?P<code>-?\d+) \(pid: *(?P<pid>\d+)\)",
    ),
    note(
        "busy",
        "saving|tokeniz|map"
        " (|map:|generating|filter|downloading|preprocess|packing|grouping|converting|caching",
        r"(?P<what>(?:Generating \w+ split|Map(?: \(num_proc=\d+\))?|Running"
        r" tokenizer|Tokenizing|Filter\w*"
        r"|Downloading|Preprocess\w*"
        r"|Saving (?:model )?checkpoint|Packing|Grouping texts|Converting|Caching)\b.{0,60})",
    ),
    note(
        "first-block",
        "main_process_first|torch_distributed_zero_first|rank_zero_first|zero_first"
        "|wait_for_everyone",
        r"\b(?P<block>(?:local_)?main_process_first|torch_distributed_zero_first|rank_zero_first"
        r"|zero_first)\b",
    ),
    note(
        "distributed",
        "torch.distributed|torch/distributed|distributeddataparallel|distributed_backend|torchrun"
        "|world_size|nproc|ddp|local_rank|nccl|syncbatchnorm|distributed"
        " training",
        r"torch[./\\]distributed|DistributedDataParallel|distributed_backend|torchrun|world_size"
        r"|nproc|\bddp\b"
        r"|local_rank|\bnccl\b|SyncBatchNorm|[Dd]istributed training",
    ),
)
