"""Signatures of NCCL and of torch's NCCL watchdog."""

from __future__ import annotations

from paceline.signatures import texts
from paceline.signatures.signature import Signature, cause, note
from paceline.signatures.tier import Tier

_LATE = (
    "find the rank that did not come: compare last enqueued work of all ranks, or py-spy dump on"
    " each of them"
)
_WARN = "run again with NCCL_DEBUG=WARN and read the NCCL WARN line above the error"

SIGNATURES: tuple[Signature, ...] = (
    cause(
        "world-size-mismatch",
        "invalid rank requested",
        r"Invalid rank requested *: *(?P<rank>\d+)/(?P<size>\d+)",  # NCCL, src/init.cc
        what="rank {rank} joined a group of {size} ranks, which are numbered from 0",
        fix="RANK must be below WORLD_SIZE: set both by one launcher, and new_group by ranks",
        tier=Tier.CAUSE,
    ),
    cause(
        "duplicate-gpu",
        "duplicate gpu detected|using the same gpu|multiple ranks are using",
        r"Duplicate GPU detected *: *rank (?P<a>\d+) and rank (?P<b>\d+) both on CUDA device"
        r" (?P<device>\S+)"
        r"|Multiple Ranks are using the same GPU|Duplicate GPU detected",
        what=(
            "ranks {b} and {a} use the same GPU (CUDA device {device})",
            "two ranks use the same GPU",
        ),
        fix=(
            "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the first collective, and"
            " no more processes a node than GPUs"
        ),
        why="NCCL wants one GPU for each rank",
    ),
    cause(
        "duplicate-gpu",
        "invalid usage|ncclinvalidusage",
        r"ncclInvalidUsage|NCCL error\b.*invalid usage",
        what="NCCL was used in a wrong way; mostly two ranks use the same GPU (likely)",
        fix=(
            "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the first collective;"
            " NCCL_DEBUG=WARN says more"
        ),
        tier=Tier.SUSPECTED,
    ),
    cause(
        "nccl-version-mismatch",
        "mismatched nccl version|nccl version mismatch|different nccl versions",
        r"Mismatched NCCL version|NCCL version mismatch|different NCCL versions?|ranks?.*NCCL"
        r" version.*(?:differ"
        r"|mismatch)",
        what="ranks load different versions of NCCL",
        fix=(
            "install the same environment on every node, and unset LD_LIBRARY_PATH entries that"
            " hold another libnccl"
        ),
    ),
    cause(
        "nccl-version-mismatch",
        "undefined symbol|symbol not found|undefined reference|version `nccl",
        r"undefined symbol:? *(?P<symbol>p?nccl\w+)|libnccl\.so\S*: version|symbol not"
        r" found.*(?:nccl)",
        what=(
            "libtorch needs {symbol}, which the libnccl that was loaded does not have",
            "another libnccl is loaded than the one that torch was built with",
        ),
        fix=(
            "pip list | grep nvidia-nccl: keep the one that torch asks for; unset LD_LIBRARY_PATH"
            " entries with a libnccl"
        ),
        why="two NCCL packages are installed, or LD_LIBRARY_PATH puts an older one first",
    ),
    cause(
        "collective-mismatch",
        "message truncated",
        r"[Mm]essage truncated",
        what=(
            "a rank received a message of another size than it waits for: ranks are in different"
            " collectives"
        ),
        fix=(
            "paceline run names the two lines that differ (TORCH_DISTRIBUTED_DEBUG=DETAIL with NCCL"
            " alone); the same NCCL_* variables and versions on every rank"
        ),
        why="sizes or the order of collectives differ between ranks, or NCCL's settings do",
    ),
    cause(
        "collective-mismatch",
        "shape mismatches|collectives on ranks|collectives differ|desync|mismatched|tensors across"
        " ranks|collective mismatch|is running collective",
        rf"{texts.COLLECTIVES_DIFFER}(?:.*?Rank (?P<a>\d+) is"
        r" running.*?OpType=(?P<op>\w+))?"
        r"(?:.*?but Rank (?P<b>\d+) is running.*?OpType=(?P<other>\w+))?|Collectives differ in the"
        r" following aspects"
        r"|Cannot apply desired operation due to shape mismatches"
        r"|ranks? .* (?:started|joined) (?:a )?different collectives?|mismatched collective",
        what=(
            (
                "rank {a} runs {op} while rank {b} runs {other}: the ranks are in different"
                " collectives"
            ),
            "rank {a} runs {op} while the others run another collective, or one of another shape",
            "ranks are in different collectives, or in one with different shapes",
        ),
        fix=(
            "every rank must make the same calls in the same order: no collective, log or save"
            " inside a block for one rank"
        ),
        why="the collectives of the ranks no longer belong together",
    ),
    cause(
        "collective-mismatch",
        "program may be hanging",
        r"may be caused by a collective mismatch around rank (?P<rank>\d+)",
        what="NCCL takes the hang for a collective mismatch around rank {rank}",
        fix=(
            "every rank must make the same calls in the same order: no collective, log or save"
            " inside a block for one rank"
        ),
        tier=Tier.HINTED,
    ),
    cause(
        "variable-contradicted",
        "no algorithm/protocol available|unrecognized element token",
        r"no algorithm/protocol available for function (?P<function>\w+)"
        r"|Unrecognized element token \"(?P<token>[^\"]+)\"",
        what=(
            "NCCL_ALGO or NCCL_PROTO leaves no way for {function}",
            "NCCL does not know {token} in NCCL_ALGO or NCCL_PROTO",
        ),
        fix="unset NCCL_ALGO NCCL_PROTO",
    ),
    cause(
        "collective-timeout",
        "caught collective operation timeout|collective operation timeout",
        rf"(?:Rank (?P<rank>\d+)\].*?)?{texts.NCCL_TIMEOUT}(?:: *(?:WorkNCCL"
        r"|WorkXCCL)\((?:SeqNum=(?P<seq>\d+), *)?.*?"
        r"OpType=(?P<op>\w+))?(?:.*?NumelIn=(?P<numel>\d+))?(?:.*?Timeout\(ms\)=(?P<ms>\d+))?",
        what=(
            "{op} number {seq} ran into its timeout of {ms} ms: not all ranks took part",
            "{op} ran into its timeout of {ms} ms: not all ranks took part",
            "a collective ran into its timeout: not all ranks took part",
        ),
        fix=_LATE,
        why=(
            "one rank stopped, left the loop earlier or does something else, while the others wait"
            " for it"
        ),
        tier=Tier.TIMEOUT,
        key="watchdog",
    ),
    cause(
        "collective-timeout",
        "workncc|ran for|failed to pass monitoredbarrier|timed out waiting|timed out in "
        "monitoredbarrier|watchdog got stuck"
        "|heartbeat monitor timed out|received a dump signal|received a global timeout|wait"
        " timeout",
        rf"Work(?:NCCL|XCCL)\(.*|{texts.BARRIER_TIMEOUT}|timed out in monitoredBarrier"
        r"|ran for \d+ milliseconds before timing out|watchdog got stuck for|"
        r"[Hh]eartbeat monitor timed out|Received a (?:dump signal|global timeout)",
        what=(
            "rank {rank} did not reach the barrier within {limit} ms",
            "a collective ran into its timeout: not all ranks took part",
        ),
        fix=_LATE,
        why=(
            "one rank stopped, left the loop earlier or does something else, while the others wait"
            " for it"
        ),
        tier=Tier.TIMEOUT,
        unless=r"gloo",
    ),
    cause(
        "collective-timeout",
        "ncclunique|setting up nccl communicator",
        r"(?:retr\w+|broadcast\w*) ncclUniqueI[dD].*(?:timeout|timed out)",
        what="a rank waited in vain for rank 0 at the first collective of the group",
        fix=(
            "what does rank 0 do then? work on rank 0 only must be over before, or the group's"
            " timeout longer; or it ended: look at its output"
        ),
        why="NCCL's first collective begins with an identifier that rank 0 makes",
        tier=Tier.TIMEOUT,
    ),
    cause(
        "peer-rank-died",
        "ncclunique|setting up nccl communicator|successfully reached monitoredbarrier",
        r"(?:retr\w+|broadcast\w*) ncclUniqueI[dD].*(?:reset|closed|broken|recv|got error)"
        r"|successfully reached monitoredBarrier, but "
        r"received errors",
        what="rank 0 ended while this rank waited for it",
        fix="look at the end of rank 0's own output",
        tier=Tier.VICTIM,
        unless=r"time(?:d )?out",
    ),
    note(
        "watchdog",
        "optype=",
        r"Rank (?P<rank>\d+)\].*SeqNum=(?P<seq>\d+), *OpType=(?P<op>\w+)(?:,"
        r" NumelIn=(?P<numel>\d+))?",
    ),
    note(
        "last-work",
        "last enqueued",
        r"Rank (?P<rank>\d+)\].*last enqueued(?: NCCL)? work: *(?P<enqueued>-?\d+), *last"
        r" completed(?: NCCL)? work: *"
        r"(?P<completed>-?\d+)",
    ),
    cause(
        "peer-rank-died",
        "ncclremoteerror|remote error|remote process exit|connection closed by remote"
        " peer|connection closed by peer|socketprogress|broken pipe|connection reset by peer|remote"
        " process exiting",
        rf"{texts.NCCL_REMOTE}|Connection closed by remote peer"
        r"|socketProgress\w*: Connection closed"
        r"|NCCL (?:WARN|INFO).*(?:Connection reset by peer|Broken pipe|peer closed)"
        r"|NCCL error.*(?:remote process|Connection reset by peer|Broken pipe)",
        what="the connection to another rank was closed: that rank ended first",
        fix=(
            "look for the first rank that ended: its traceback, exit code or dmesg on its node"
            " (memory, Xid)"
        ),
        why=(
            "this is what the surviving ranks say; the cause is in the output of the one that ended"
        ),
        tier=Tier.VICTIM,
    ),
    cause(
        "peer-rank-died",
        "aborted|entire process down|operations have failed|communicator was aborted|communicator"
        " is aborted",
        r"Some NCCL operations have failed or timed out|taking the entire process down"
        rf"|{texts.NCCL_ABORTED}"
        r"|communicator.*encountered error|another rank .*(?:error|fail)",
        what="this rank took itself down after a failure elsewhere",
        fix="look for the first rank that failed, in the output of all ranks",
        tier=Tier.AFTERMATH,
    ),
    cause(
        "cause-unknown",
        "nccl error|ncclinternalerror|ncclunhandledcudaerror|unhandled cuda error|internal error",
        r"nccl(?:Internal|UnhandledCuda)Error|NCCL [Ee]rror\b.*(?P<kind>unhandled cuda"
        r" error|internal error)"
        r"|unhandled cuda error",
        what=(
            "NCCL failed ({kind}), and the text does not say why",
            "NCCL failed, and the text does not say why",
        ),
        fix=_WARN,
        why="torch repeats only the kind of the error",
        tier=Tier.UNCLEAR,
    ),
    cause(
        "nccl-system-error",
        "ncclsystemerror|system error",
        r"ncclSystemError|unhandled system error|NCCL [Ee]rror\b.*system error",
        what=(
            "NCCL met an error of the system (a socket, shared memory, a device); the line that"
            " names it is not in this text"
        ),
        fix=(
            "in this order: nc -zv between the nodes; NCCL_SOCKET_IFNAME=the interface they share"
            " (ip -br addr); the same NCCL and driver on each; df -h /dev/shm; then"
            " NCCL_DEBUG=WARN, whose NCCL WARN line names it"
        ),
        why=(
            "torch repeats only the kind of the error; usually the nodes do not reach each other"
            " over the interface that NCCL chose"
        ),
        tier=Tier.UNCLEAR,
    ),
    cause(
        "collective-on-wrong-device",
        "no backend type associated with device type|tensors must be cuda and dense|only supports"
        " cuda|only supports gpu",
        r"No backend type associated with device type (?P<device>\w+)|Tensors must be CUDA and"
        r" dense"
        r"|(?:NCCL|nccl)\b.*only supports (?:CUDA|GPU)",
        what=(
            "a collective got a tensor on {device}, for which the process group has no backend",
            "a collective got a tensor on the CPU, and NCCL takes tensors on GPUs only",
        ),
        fix=(
            "move the tensor to the rank's GPU before the collective, or"
            " init_process_group('cpu:gloo,cuda:nccl')"
        ),
        why=(
            "NCCL takes tensors on GPUs only, and gloo is not part of a group that was made with"
            " 'nccl'"
        ),
    ),
    cause(
        "cause-unknown",
        ".cc:|.cu:",
        r"NCCL INFO (?P<place>\S+\.(?:cc|h|cu):\d+) -> (?P<code>[1-9])\b",
        what=(
            "a call inside NCCL failed at {place} with code {code}; the NCCL WARN line that says"
            " why is not in this text"
        ),
        fix=_WARN,
        why="codes: 1 CUDA, 2 system call, 3 internal, 5 wrong use, 6 the remote side",
        tier=Tier.ABORTED,
    ),
    cause(
        "nccl-not-built-in",
        "have nccl built in|nccl is not available|nccl not available|nccl backend|no nccl"
        " support|built with nccl|compiled with nccl",
        r"doesn't have NCCL ?(?:\"? ?\"?)built in|NCCL (?:backend )?(?:is )?not"
        r" (?:available|compiled|supported"
        r"|built)"
        r"|not (?:compiled|built) with NCCL",
        what="this torch has no NCCL",
        fix=(
            "init_process_group('gloo') on a machine without NCCL (Windows, macOS, CPU builds), or"
            " install a CUDA build of torch on Linux"
        ),
    ),
    cause(
        "gpus-fewer-than-processes",
        "no gpus found|only supported with gpus",
        r"ProcessGroupNCCL is only supported with GPUs",
        what="NCCL was asked for where no GPU is visible",
        fix="ask for GPUs (sbatch --gres=gpu:N, docker --gpus all), or use backend gloo on CPUs",
    ),
    cause(
        "variable-contradicted",
        "mnnvl",
        r"MNNVL .*available but not working",
        what="multi-node NVLink is there but does not work: IMEX is not configured",
        fix="export NCCL_MNNVL_ENABLE=0, or set up nvidia-imex on the nodes",
    ),
    cause(
        "no-error-in-log",
        "destroy_process_group() was not called|guessing device id|using the gpu|device used by"
        " this process is currently unknown",
        r"destroy_process_group\(\) was not called|Guessing device ID"
        r"|device used by this process is currently unknown",
        what="only harmless warnings",
        fix="",
        tier=Tier.REMARK,
        key="remark",
    ),
)
