"""What NCCL and torch's watchdog over it print."""

from __future__ import annotations

from paceline.explain.signature import (
    COARSE,
    HINTED,
    REMARK,
    TIMEOUT,
    UNCLEAR,
    VICTIM,
    Signature,
    cause,
    note,
)

_LATE = "find the rank that did not come: compare last enqueued work of all ranks, or py-spy dump on each of them"
_WARN = "run again with NCCL_DEBUG=WARN and read the NCCL WARN line above the error"

SIGNATURES: tuple[Signature, ...] = (
    cause(
        "duplicate-gpu",
        "duplicate gpu detected|using the same gpu|multiple ranks are using",
        r"Duplicate GPU detected *: *rank (?P<a>\d+) and rank (?P<b>\d+) both on CUDA device (?P<device>\S+)"
        r"|Multiple Ranks are using the same GPU|Duplicate GPU detected",
        what=("ranks {b} and {a} use the same GPU (CUDA device {device})", "two ranks use the same GPU"),
        fix="torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the first collective, and no more processes a "
        "node than GPUs",
        why="NCCL wants one GPU for each rank",
    ),
    cause(
        "duplicate-gpu",
        "invalid usage|ncclinvalidusage",
        r"ncclInvalidUsage|NCCL error\b.*invalid usage",
        what="NCCL was used in a wrong way; mostly two ranks use the same GPU (likely)",
        fix=(
            "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the first collective; NCCL_DEBUG=WARN "
            "says more"
        ),
        weight=UNCLEAR + 5,
    ),
    cause(
        "no-socket-interface",
        "no socket interface found|no usable listening interface|no interface found|is neither af_inet",
        r"no socket interface found|no usable listening interface found|No interface found in the same subnet"
        r"|connecting to address\s+with family \d+ is neither",
        what="NCCL finds no network interface that fits its setting",
        fix="unset NCCL_SOCKET_IFNAME, or set it to an interface that every node has: ip -br addr",
        why="a name in NCCL_SOCKET_IFNAME (or NCCL_SOCKET_FAMILY) matches nothing on this node",
    ),
    cause(
        "nccl-version-mismatch",
        "mismatched nccl version|nccl version mismatch|different nccl versions",
        r"Mismatched NCCL version|NCCL version mismatch|different NCCL versions?|ranks?.*NCCL version.*(?:differ"
        r"|mismatch)",
        what="ranks load different versions of NCCL",
        fix="install the same environment on every node, and unset LD_LIBRARY_PATH entries that hold another libnccl",
    ),
    cause(
        "nccl-version-mismatch",
        "undefined symbol|symbol not found|undefined reference|version `nccl",
        r"undefined symbol:? *(?P<symbol>p?nccl\w+)|libnccl\.so\S*: version|symbol not found.*(?:nccl)",
        what=(
            "libtorch needs {symbol}, which the libnccl that was loaded does not have",
            "another libnccl is loaded than the one that torch was built with",
        ),
        fix=(
            "pip list | grep nvidia-nccl: keep the one that torch asks for; unset LD_LIBRARY_PATH entries with a "
            "libnccl"
        ),
        why="two NCCL packages are installed, or LD_LIBRARY_PATH puts an older one first",
    ),
    cause(
        "nccl-shm-too-small",
        "/dev/shm/nccl|shared memory segment|creating shared memory",
        r"(?:failed to (?:extend|create|open)|Error while (?:creating|attaching)).*(?:/dev/shm/nccl\S*|shared memory)"
        r"|/dev/shm/nccl\S*.*(?:No space left|error)|Call to posix_fallocate failed *: *No space left",
        what="NCCL cannot make its shared memory in /dev/shm: no room left there",
        fix="docker run --shm-size=1g --ulimit memlock=-1 ...; in Kubernetes mount an emptyDir with medium: Memory at "
        "/dev/shm",
        why="containers have 64 MB there unless told otherwise",
        unless=r"No such file or directory",
    ),
    cause(
        "nccl-shm-too-small",
        "posix_fallocate",
        r"posix_fallocate failed",
        what="NCCL cannot make its shared memory in /dev/shm: no room left there",
        fix="docker run --shm-size=1g --ulimit memlock=-1 ...",
        why="containers have 64 MB there unless told otherwise",
    ),
    cause(
        "infiniband-error",
        "modify qp|got completion|ibv_wc_|async fatal|async event|local work queue catastrophic|ibv_modify_qp"
        "|ibv_poll_cq"
        "|work completion",
        r"Got completion (?:from peer (?P<peer>\S+) )?with (?:error|status)[ =]*(?:IBV_WC_\w+\()?(?P<status>\d+)"
        r"|[Ff]ailed to modify QP|NET/IB.*(?:async fatal event|Got async (?:error )?event)|IBV_WC_\w*ERR|"
        r"ibv_(?:modify_qp|poll_cq|post_send|create_qp)\S* failed",
        what=(
            "an InfiniBand or RoCE transfer with {peer} failed, completion status {status}",
            "an InfiniBand or RoCE transfer failed, completion status {status}",
            "an InfiniBand or RoCE adapter reports an error",
        ),
        fix="ib_write_bw between the two nodes; check the link, NCCL_IB_HCA and, on RoCE, NCCL_IB_GID_INDEX",
        why="status 12 is a transport timeout: the other side does not answer over that link",
        weight=COARSE,
        unless=r"NCCL INFO(?!.*(?:fatal|failed|IBV_WC))",
    ),
    cause(
        "memlock-too-low",
        "ibv_reg_mr|ibv_create_cq|ibv_create_qp|ibv_alloc_pd|memlock|register memory|locked memory",
        r"ibv_(?:reg_mr|create_cq|create_qp|alloc_pd)\w*.*(?:Cannot allocate memory|failed)|RLIMIT_MEMLOCK"
        r"|locked memory limit|memlock (?:limit )?(?:is )?too (?:low|small)",
        what="memory cannot be locked for RDMA: the limit of locked memory is too low",
        fix="ulimit -l unlimited (limits.conf; LimitMEMLOCK=infinity in slurmd's unit; docker --ulimit memlock=-1)",
    ),
    cause(
        "infiniband-error",
        "net/ofi",
        r"NCCL WARN NET/OFI.*(?:Unable to register memory|failed|error|RC: *-\d+)",
        what="the EFA plug-in of NCCL (NET/OFI) failed",
        fix=(
            "upgrade efa-installer and aws-ofi-nccl to a pair that fits this NCCL; fi_info -p efa must list the "
            "adapters"
        ),
        weight=HINTED,
    ),
    cause(
        "interface-not-routed",
        "no route to host|network is unreachable|exceeded error retry|connection refused|connection timed "
        "out|connect to",
        r"NCCL (?:WARN|INFO).*connect to \S*?(?P<address>[\d.]+)?<(?P<port>\d+)> (?:failed|returned).*?"
        r"(?P<error>No route to host|Network is unreachable)|socket.*connect to (?P<to>\S+) failed *: *"
        r"(?P<err>No route to host|Network is unreachable)",
        what=(
            "NCCL cannot reach {address}: {error}",
            "NCCL cannot reach {to}: {err}",
            "NCCL cannot reach another node over the interface that it chose",
        ),
        fix=(
            "export NCCL_SOCKET_IFNAME to the interface that all nodes share (ip -br addr), and open the ports "
            "between them"
        ),
        why=(
            "an interface that is up need not be routed between the nodes (docker0, virbr0), or a firewall drops "
            "packets"
        ),
        weight=COARSE,
    ),
    cause(
        "interface-not-routed",
        "connect to",
        r"connect to (?:address )?(?P<address>\S+) (?:failed *: *(?P<error>Connection (?:refused|timed out)"
        r"|Software caused"
        r" connection abort)|returned (?P<code>.+?), exceeded error retry|timed out)",
        what=("NCCL cannot connect to {address}: {error}", "NCCL cannot connect to {address}"),
        fix="export NCCL_SOCKET_IFNAME to the interface that all nodes share (ip -br addr); if a rank ended before, "
        "look "
        "there first",
        why="the interface is not routed between the nodes, a firewall is in between, or the other process has ended",
        weight=TIMEOUT - 2,
        unless=r"gloo|retrying",
    ),
    cause(
        "p2p-hang",
        "peer access is not supported|via p2p or ib|ipcgetmemhandle|cuipcopenmemhandle|p2p is disabled"
        "|cudaipcopenmemhandle|peer "
        "mapping",
        r"peer access is not supported between these two devices|support faster communication broadband via P2P"
        r"|peer mapping resources exhausted|"
        r"P2P is disabled between (?:NVLINK )?connected GPUs (?P<a>\d+) and (?P<b>\d+)"
        r"|Ipc\w*MemHandle.*(?:invalid|failed)",
        what=(
            "peer-to-peer transfer between GPUs {a} and {b} is switched off or broken",
            "GPU peer-to-peer transfer does not work between these devices",
        ),
        fix="NCCL_P2P_DISABLE=1 as a test; then ACS off in the BIOS, or all GPUs of the node visible to every rank",
        weight=HINTED,
    ),
    cause(
        "collective-mismatch",
        "message truncated",
        r"[Mm]essage truncated",
        what="a rank received a message of another size than it waits for: ranks are in different collectives",
        fix=(
            "paceline run names the two lines that differ (TORCH_DISTRIBUTED_DEBUG=DETAIL with NCCL alone); the same "
            "NCCL_* variables and versions on every rank"
        ),
        why="sizes or the order of collectives differ between ranks, or NCCL's settings do",
    ),
    cause(
        "collective-mismatch",
        "shape mismatches|collectives on ranks|collectives differ|desync|mismatched|tensors across ranks"
        "|collective mismatch|is "
        "running collective",
        r"Detected mismatch between collectives on ranks(?:.*?Rank (?P<a>\d+) is running.*?OpType=(?P<op>\w+))?"
        r"(?:.*?but Rank (?P<b>\d+) is running.*?OpType=(?P<other>\w+))?|Collectives differ in the following aspects"
        r"|Cannot apply desired operation due to shape mismatches"
        r"|ranks? .* (?:started|joined) (?:a )?different collectives?|mismatched collective",
        what=(
            "rank {a} runs {op} while rank {b} runs {other}: the ranks are in different collectives",
            "rank {a} runs {op} while the others run another collective, or one of another shape",
            "ranks are in different collectives, or in one with different shapes",
        ),
        fix=(
            "every rank must make the same calls in the same order: no collective, log or save inside a block "
            "for one rank"
        ),
        why="the collectives of the ranks no longer belong together",
    ),
    cause(
        "collective-mismatch",
        "program may be hanging",
        r"may be caused by a collective mismatch around rank (?P<rank>\d+)",
        what="NCCL takes the hang for a collective mismatch around rank {rank}",
        fix=(
            "every rank must make the same calls in the same order: no collective, log or save inside a block "
            "for one rank"
        ),
        weight=HINTED - 1,
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
        r"(?:Rank (?P<rank>\d+)\].*?)?collective operation timeout(?:: *(?:WorkNCCL"
        r"|WorkXCCL)\((?:SeqNum=(?P<seq>\d+), *)?.*?"
        r"OpType=(?P<op>\w+))?(?:.*?NumelIn=(?P<numel>\d+))?(?:.*?Timeout\(ms\)=(?P<ms>\d+))?",
        what=(
            "{op} number {seq} ran into its timeout of {ms} ms: not all ranks took part",
            "{op} ran into its timeout of {ms} ms: not all ranks took part",
            "a collective ran into its timeout: not all ranks took part",
        ),
        fix=_LATE,
        why="one rank stopped, left the loop earlier or does something else, while the others wait for it",
        weight=TIMEOUT,
        key="watchdog",
    ),
    cause(
        "collective-timeout",
        "workncc|ran for|failed to pass monitoredbarrier|timed out waiting|timed out in "
        "monitoredbarrier|watchdog got stuck"
        "|heartbeat monitor timed out|received a dump signal|received a global timeout|wait timeout",
        r"Work(?:NCCL|XCCL)\(.*|(?P<rank>\d+) failed to pass monitoredBarrier in (?P<limit>\d+) ms|timed out in "
        r"monitoredBarrier|ran for \d+ milliseconds before timing out|watchdog got stuck for|"
        r"[Hh]eartbeat monitor timed out|Received a (?:dump signal|global timeout)",
        what=(
            "rank {rank} did not reach the barrier within {limit} ms",
            "a collective ran into its timeout: not all ranks took part",
        ),
        fix=_LATE,
        why="one rank stopped, left the loop earlier or does something else, while the others wait for it",
        weight=TIMEOUT - 1,
        unless=r"gloo",
    ),
    cause(
        "collective-timeout",
        "ncclunique|setting up nccl communicator",
        r"(?:retr\w+|broadcast\w*) ncclUniqueI[dD].*(?:timeout|timed out)",
        what="a rank waited in vain for rank 0 at the first collective of the group",
        fix="what does rank 0 do then? work on rank 0 only must be over before, or the group's timeout longer; or "
        "it ended: "
        "look at its output",
        why="NCCL's first collective begins with an identifier that rank 0 makes",
        weight=TIMEOUT + 1,
    ),
    cause(
        "peer-rank-died",
        "ncclunique|setting up nccl communicator|successfully reached monitoredbarrier",
        r"(?:retr\w+|broadcast\w*) ncclUniqueI[dD].*(?:reset|closed|broken|recv|got error)"
        r"|successfully reached monitoredBarrier, but "
        r"received errors",
        what="rank 0 ended while this rank waited for it",
        fix="look at the end of rank 0's own output",
        weight=VICTIM + 1,
        unless=r"time(?:d )?out",
    ),
    note(
        "watchdog",
        "optype=",
        r"Rank (?P<rank>\d+)\].*SeqNum=(?P<seq>\d+), *OpType=(?P<op>\w+)(?:, NumelIn=(?P<numel>\d+))?",
    ),
    note(
        "last-work",
        "last enqueued",
        r"Rank (?P<rank>\d+)\].*last enqueued(?: NCCL)? work: *(?P<enqueued>-?\d+), *last completed(?: NCCL)? work: *"
        r"(?P<completed>-?\d+)",
    ),
    cause(
        "peer-rank-died",
        "ncclremoteerror|remote error|remote process exit|connection closed by remote peer|connection closed by peer"
        "|socketprogress|broken pipe|connection reset by peer|remote process exiting",
        r"ncclRemoteError|remote process exit(?:ing|ed)|Connection closed by remote peer"
        r"|socketProgress\w*: Connection closed"
        r"|NCCL (?:WARN|INFO).*(?:Connection reset by peer|Broken pipe|peer closed)"
        r"|NCCL error.*(?:remote process|Connection reset by peer|Broken pipe)",
        what="the connection to another rank was closed: that rank ended first",
        fix="look for the first rank that ended: its traceback, exit code or dmesg on its node (memory, Xid)",
        why="this is what the surviving ranks say; the cause is in the output of the one that ended",
        weight=VICTIM,
    ),
    cause(
        "peer-rank-died",
        "aborted|entire process down|operations have failed|communicator was aborted|communicator is aborted",
        r"Some NCCL operations have failed or timed out|taking the entire process down|NCCL communicator (?:was"
        r"|is) aborted"
        r"|communicator.*encountered error|another rank .*(?:error|fail)",
        what="this rank took itself down after a failure elsewhere",
        fix="look for the first rank that failed, in the output of all ranks",
        weight=VICTIM - 3,
    ),
    cause(
        "cause-unknown",
        "nccl error|ncclinternalerror|ncclunhandledcudaerror|unhandled cuda error|internal error",
        r"nccl(?:Internal|UnhandledCuda)Error|NCCL [Ee]rror\b.*(?P<kind>unhandled cuda error|internal error)"
        r"|unhandled cuda error",
        what=("NCCL failed ({kind}), and the text does not say why", "NCCL failed, and the text does not say why"),
        fix=_WARN,
        why="torch repeats only the kind of the error",
        weight=UNCLEAR,
    ),
    cause(
        "nccl-system-error",
        "ncclsystemerror|system error",
        r"ncclSystemError|unhandled system error|NCCL [Ee]rror\b.*system error",
        what="NCCL met an error of the system (a socket, shared memory, a device); the line that names it is not in "
        "this text",
        fix="in this order: nc -zv between the nodes; NCCL_SOCKET_IFNAME=the interface they share (ip -br addr); the "
        "same NCCL and driver on each; df -h /dev/shm; then NCCL_DEBUG=WARN, whose NCCL WARN line names it",
        why="torch repeats only the kind of the error; usually the nodes do not reach each other over the interface "
        "that NCCL chose",
        weight=UNCLEAR,
    ),
    cause(
        "collective-on-wrong-device",
        "no backend type associated with device type|tensors must be cuda and dense|only supports cuda"
        "|only supports gpu",
        r"No backend type associated with device type (?P<device>\w+)|Tensors must be CUDA and dense"
        r"|(?:NCCL|nccl)\b.*only supports (?:CUDA|GPU)",
        what=(
            "a collective got a tensor on {device}, for which the process group has no backend",
            "a collective got a tensor on the CPU, and NCCL takes tensors on GPUs only",
        ),
        fix="move the tensor to the rank's GPU before the collective, or init_process_group('cpu:gloo,cuda:nccl')",
        why="NCCL takes tensors on GPUs only, and gloo is not part of a group that was made with 'nccl'",
    ),
    cause(
        "cause-unknown",
        ".cc:|.cu:",
        r"NCCL INFO (?P<place>\S+\.(?:cc|h|cu):\d+) -> (?P<code>[1-9])\b",
        what=(
            "a call inside NCCL failed at {place} with code {code}; the NCCL WARN line that says why is not in "
            "this text"
        ),
        fix=_WARN,
        why="codes: 1 CUDA, 2 system call, 3 internal, 5 wrong use, 6 the remote side",
        weight=UNCLEAR - 4,
    ),
    cause(
        "nccl-not-built-in",
        "have nccl built in|nccl is not available|nccl not available|nccl backend|no nccl support|built with "
        "nccl|compiled with nccl",
        r"doesn't have NCCL ?(?:\"? ?\"?)built in|NCCL (?:backend )?(?:is )?not (?:available|compiled|supported"
        r"|built)"
        r"|not (?:compiled|built) with NCCL",
        what="this torch has no NCCL",
        fix="init_process_group('gloo') on a machine without NCCL (Windows, macOS, CPU builds), or install a CUDA "
        "build of "
        "torch on Linux",
    ),
    cause(
        "gpus-fewer-than-processes",
        "no gpus found|only supported with gpus",
        r"ProcessGroupNCCL is only supported with GPUs",
        what="NCCL was asked for where no GPU is visible",
        fix="ask for GPUs (sbatch --gres=gpu:N, docker --gpus all), or use backend gloo on CPUs",
    ),
    cause(
        "nccl-shm-too-small",
        "unlink shared memory",
        r"unlink shared memory \S*nccl\S* failed",
        what="somebody removed NCCL's shared memory while it was in use",
        fix="RemoveIPC=no in /etc/systemd/logind.conf: systemd cleans up for users without a login",
        weight=UNCLEAR,
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
        "destroy_process_group() was not called|guessing device id|using the gpu|device used by this process is "
        "currently unknown",
        r"destroy_process_group\(\) was not called|Guessing device ID"
        r"|device used by this process is currently unknown",
        what="only harmless warnings",
        fix="",
        weight=REMARK,
        key="remark",
    ),
)
