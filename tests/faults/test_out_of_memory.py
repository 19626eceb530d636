"""A rank takes more memory than its cgroup has, and the kernel kills it."""

import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from unittest import SkipTest

from faults.stage import fault

GROUPS = Path("/sys/fs/cgroup")


@contextmanager
def memory_group(limit):
    """A cgroup that holds no more than ``limit`` bytes, of version 2 or 1."""
    v2 = (GROUPS / "cgroup.controllers").exists()
    group = (GROUPS if v2 else GROUPS / "memory") / f"paceline-{uuid.uuid4().hex[:8]}"
    try:
        if v2:
            (GROUPS / "cgroup.subtree_control").write_text("+memory")
        group.mkdir()
        (group / ("memory.max" if v2 else "memory.limit_in_bytes")).write_text(str(limit))
    except OSError as error:
        raise SkipTest(f"no memory cgroup can be made here: {error}") from None
    yield group
    for _ in range(100):
        try:
            return group.rmdir()
        except OSError:  # who lived there is not quite gone
            time.sleep(0.05)


@fault(
    "memory cgroup kill",
    finding="rank-died-oom-killer",
    names=("rank 1", "memory ran out|out of memory"),
    mounts=True,
)
def test_the_kernel_kills_a_rank(stage):
    group = stage.exits.enter_context(memory_group(400 << 20))
    stage.script(
        step=f"""
        if rank == 1 and step == 5:
            open("{group}/cgroup.procs", "w").write(str(os.getpid()))
            broke()
            hog = [bytearray(1 << 20) for _ in range(1000)]
        """
    )
    stage.launch()
