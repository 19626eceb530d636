"""Signatures of NCCL's transports: InfiniBand, sockets, shared memory, peer-to-peer."""

from __future__ import annotations

from paceline.signatures.signature import Signature, cause
from paceline.signatures.tier import Tier

SIGNATURES: tuple[Signature, ...] = (
    cause(
        "no-socket-interface",
        "no socket interface found|no usable listening interface|no interface found|is neither"
        " af_inet",
        r"no socket interface found|no usable listening interface found|No interface found in the"
        r" same subnet"
        r"|connecting to address\s+with family \d+ is neither",
        what="NCCL finds no network interface that fits its setting",
        fix="unset NCCL_SOCKET_IFNAME, or set it to an interface that every node has: ip -br addr",
        why="a name in NCCL_SOCKET_IFNAME (or NCCL_SOCKET_FAMILY) matches nothing on this node",
    ),
    cause(
        "nccl-shm-too-small",
        "/dev/shm/nccl|shared memory segment|creating shared memory",
        r"(?:failed to (?:extend|create|open)|Error while"
        r" (?:creating|attaching)).*(?:/dev/shm/nccl\S*|shared memory)"
        r"|/dev/shm/nccl\S*.*(?:No space left|error)|Call to posix_fallocate failed *: *No space"
        r" left",
        what="NCCL cannot make its shared memory in /dev/shm: no room left there",
        fix=(
            "docker run --shm-size=1g --ulimit memlock=-1 ...; in Kubernetes mount an emptyDir with"
            " medium: Memory at /dev/shm"
        ),
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
        "modify qp|got completion|ibv_wc_|async fatal|async event|local work queue"
        " catastrophic|ibv_modify_qp|ibv_poll_cq|work completion",
        r"Got completion (?:from peer (?P<peer>\S+) )?with (?:error|status)["
        r" =]*(?:IBV_WC_\w+\()?(?P<status>\d+)"
        r"|[Ff]ailed to modify QP|NET/IB.*(?:async fatal event|Got async (?:error"
        r" )?event)|IBV_WC_\w*ERR|"
        r"ibv_(?:modify_qp|poll_cq|post_send|create_qp)\S* failed",
        what=(
            "an InfiniBand or RoCE transfer with {peer} failed, completion status {status}",
            "an InfiniBand or RoCE transfer failed, completion status {status}",
            "an InfiniBand or RoCE adapter reports an error",
        ),
        fix=(
            "ib_write_bw between the two nodes; check the link, NCCL_IB_HCA and, on RoCE,"
            " NCCL_IB_GID_INDEX"
        ),
        why="status 12 is a transport timeout: the other side does not answer over that link",
        tier=Tier.COARSE,
        unless=r"NCCL INFO(?!.*(?:fatal|failed|IBV_WC))",
    ),
    cause(
        "memlock-too-low",
        "ibv_reg_mr|ibv_create_cq|ibv_create_qp|ibv_alloc_pd|memlock|register memory|locked memory",
        r"ibv_(?:reg_mr|create_cq|create_qp|alloc_pd)\w*.*(?:Cannot allocate"
        r" memory|failed)|RLIMIT_MEMLOCK"
        r"|locked memory limit|memlock (?:limit )?(?:is )?too (?:low|small)",
        what="memory cannot be locked for RDMA: the limit of locked memory is too low",
        fix=(
            "ulimit -l unlimited (limits.conf; LimitMEMLOCK=infinity in slurmd's unit; docker"
            " --ulimit memlock=-1)"
        ),
    ),
    cause(
        "infiniband-error",
        "net/ofi",
        r"NCCL WARN NET/OFI.*(?:Unable to register memory|failed|error|RC: *-\d+)",
        what="the EFA plug-in of NCCL (NET/OFI) failed",
        fix=(
            "upgrade efa-installer and aws-ofi-nccl to a pair that fits this NCCL; fi_info -p efa"
            " must list the adapters"
        ),
        tier=Tier.HINTED,
    ),
    cause(
        "interface-not-routed",
        "no route to host|network is unreachable|exceeded error retry|connection refused|connection"
        " timed out|connect to",
        r"NCCL (?:WARN|INFO).*connect to \S*?(?P<address>[\d.]+)?<(?P<port>\d+)>"
        r" (?:failed|returned).*?"
        r"(?P<error>No route to host|Network is unreachable)|socket.*connect to (?P<to>\S+) failed"
        r" *: *"
        r"(?P<err>No route to host|Network is unreachable)",
        what=(
            "NCCL cannot reach {address}: {error}",
            "NCCL cannot reach {to}: {err}",
            "NCCL cannot reach another node over the interface that it chose",
        ),
        fix=(
            "export NCCL_SOCKET_IFNAME to the interface that all nodes share (ip -br addr), and"
            " open the ports between them"
        ),
        why=(
            "an interface that is up need not be routed between the nodes (docker0, virbr0), or a"
            " firewall drops packets"
        ),
        tier=Tier.COARSE,
    ),
    cause(
        "interface-not-routed",
        "connect to",
        r"connect to (?:address )?(?P<address>\S+) (?:failed *: *(?P<error>Connection"
        r" (?:refused|timed out)"
        r"|Software caused"
        r" connection abort)|returned (?P<code>.+?), exceeded error retry|timed out)",
        what=("NCCL cannot connect to {address}: {error}", "NCCL cannot connect to {address}"),
        fix=(
            "export NCCL_SOCKET_IFNAME to the interface that all nodes share (ip -br addr); if a"
            " rank ended before, look there first"
        ),
        why=(
            "the interface is not routed between the nodes, a firewall is in between, or the other"
            " process has ended"
        ),
        tier=Tier.TIMEOUT,
        unless=r"gloo|retrying",
    ),
    cause(
        "p2p-hang",
        "peer access is not supported|via p2p or ib|ipcgetmemhandle|cuipcopenmemhandle|p2p is"
        " disabled|cudaipcopenmemhandle|peer mapping",
        r"peer access is not supported between these two devices|support faster communication"
        r" broadband via P2P"
        r"|peer mapping resources exhausted|"
        r"P2P is disabled between (?:NVLINK )?connected GPUs (?P<a>\d+) and (?P<b>\d+)"
        r"|Ipc\w*MemHandle.*(?:invalid|failed)",
        what=(
            "peer-to-peer transfer between GPUs {a} and {b} is switched off or broken",
            "GPU peer-to-peer transfer does not work between these devices",
        ),
        fix=(
            "NCCL_P2P_DISABLE=1 as a test; then ACS off in the BIOS, or all GPUs of the node"
            " visible to every rank"
        ),
        tier=Tier.HINTED,
    ),
    cause(
        "nccl-shm-too-small",
        "unlink shared memory",
        r"unlink shared memory \S*nccl\S* failed",
        what="somebody removed NCCL's shared memory while it was in use",
        fix="RemoveIPC=no in /etc/systemd/logind.conf: systemd cleans up for users without a login",
        tier=Tier.UNCLEAR,
    ),
)
