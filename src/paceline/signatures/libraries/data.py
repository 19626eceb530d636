"""Signatures of data loading: workers, shared memory, open files, disks."""

from __future__ import annotations

from paceline.signatures import texts
from paceline.signatures.signature import Signature, cause
from paceline.signatures.tier import Tier

_SHM = (
    "docker run --shm-size=8g (Kubernetes: emptyDir with medium: Memory at /dev/shm), or fewer"
    " DataLoader workers"
)

SIGNATURES: tuple[Signature, ...] = (
    cause(
        "dataloader-shm-too-small",
        "bus error|shared memory|/torch_",
        rf"{texts.WORKER_SIGNAL}: Bus error|bus error encountered in worker"
        r"|insufficient shared memory"
        r"|workers are out of shared memory|unable to (?:write to|allocate shared memory\(shm\)"
        r" for|resize"
        r"|mmap) ?(?:file )?"
        r"</?torch_\S*>.*(?:No space|Cannot allocate|Resource temporarily)|out of shared memory"
        r"|unable to open shared memory object </?torch_\S*>",
        what="shared memory (/dev/shm) is too small for the DataLoader workers",
        fix=_SHM,
        why=(
            "workers hand batches over through /dev/shm; containers have 64 MB there unless told"
            " otherwise"
        ),
        unless=r"Too many open files",
    ),
    cause(
        "dataloader-shm-too-small",
        "bus error",
        r"\bBus error\b",
        what="a process ended with a bus error, mostly because /dev/shm is full (likely)",
        fix=_SHM,
        why="df -h /dev/shm in the job shows how large it is",
        unless=r"PCIe",
        tier=Tier.CRASH,
    ),
    cause(
        "too-many-open-files",
        "too many open files|ancdata|inotify",
        r"Too many open files|received \d+ items of ancdata|inotify (?:watch|instance) limit"
        r" reached",
        what="the limit of open file descriptors is reached",
        fix=(
            "ulimit -n 65536 before the start, or"
            " torch.multiprocessing.set_sharing_strategy('file_system')"
        ),
        why="every tensor that a worker hands over holds a descriptor",
    ),
    cause(
        "disk-full",
        "no space left on device|disk quota exceeded|quota exceeded|enospc|not enough disk space"
        "|not enough free disk space",
        r"No space left on device|(?:Disk )?quota exceeded|ENOSPC|Error: Not enough (?:free )?disk"
        r" space",
        what="there is no space left on the disk that is written to",
        fix=(
            "df -h and quota -s on the node; point checkpoints, caches and TMPDIR to a disk with"
            " room"
        ),
        unless=r"/dev/shm|shared memory|</?torch_|nccl|inotify|posix_fallocate|GPU",
    ),
    cause(
        "disk-full",
        "pytorchstreamwriter|unexpected pos|inline_container|basic_ios::clear",
        r"PytorchStreamWriter failed writing file|unexpected pos \d+ vs \d+|basic_ios::clear:"
        r" iostream error",
        what=(
            "a checkpoint could not be written: the disk is full, or the quota is reached (likely)"
        ),
        fix="df -h and quota -s for the checkpoint folder; ulimit -f must say unlimited",
        tier=Tier.COARSE,
    ),
    cause(
        "disk-full",
        "file too large",
        r"\[Errno 27\]|: File too large\b",
        what="a file has reached the size that this process may write (ulimit -f)",
        fix="ulimit -f unlimited before the start; ulimit -H -f shows what is allowed",
    ),
    cause(
        "folder-not-writable",
        "read-only file system",
        r"Read-only file system:? *(?P<path>['\"][^'\"]+['\"])?",
        what=("{path} is on a read-only file system", "the folder is on a read-only file system"),
        fix="write to a folder that the job may write: test with touch FOLDER/x on the node",
    ),
    cause(
        "rank-died-oom-killer",
        "dataloader worker",
        texts.WORKER_KILLED,
        what="a DataLoader worker was killed: mostly because host memory ran out (likely)",
        fix=(
            "more memory for the job (--mem), fewer workers, smaller prefetch_factor; dmesg -T |"
            " grep -i oom tells for sure"
        ),
        tier=Tier.WORKER_CRASH,
    ),
    cause(
        "rank-segfault",
        "dataloader worker",
        rf"{texts.WORKER_SIGNAL}: Segmentation fault",
        what="a DataLoader worker crashed in native code (SIGSEGV)",
        fix="num_workers=0 shows the line; faulthandler.enable() in the worker prints its stack",
        tier=Tier.WORKER_CRASH,
    ),
    cause(
        "rank-died-signal",
        "dataloader worker",
        rf"{texts.WORKER_EXITED}|{texts.WORKER_SIGNAL}: "
        r"(?P<signal>Aborted|Terminated|Floating point exception|Illegal instruction)",
        what=(
            (
                "a DataLoader worker ended without a word (pid {pids}): mostly it was killed"
                " because memory ran out (likely)"
            ),
            "a DataLoader worker was ended by a signal: {signal}",
        ),
        fix=(
            "num_workers=0 shows an error of the data set itself; dmesg -T | grep -i oom tells"
            " whether memory ran out"
        ),
        tier=Tier.SUSPECTED,
    ),
)
