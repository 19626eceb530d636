"""Check variables whose name has changed: which old names still work, and which versions read the
new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from paceline.diagnose.variables.setting import Setting
from paceline.diagnose.variables.versions import at_least
from paceline.errors import Finding

LIBRARIES = {"nccl": "NCCL", "torch": "torch"}


@dataclass(frozen=True)
class Renamed:
    """A variable that has a new name."""

    new: str  # the new name
    library: str  # the library that reads it, ``"nccl"`` or ``"torch"``
    since: str  # the first version that reads the new name
    works: bool = True  # whether the old name is still read
    remark: str = ""  # other changes
    # whether the old name is reported for an unknown version too; not where both names are common
    announced: bool = True


CTAS = "the stricter of the two counts if both are set"
RENAMED = {
    "NCCL_ASYNC_ERROR_HANDLING": Renamed("TORCH_NCCL_ASYNC_ERROR_HANDLING", "torch", "2.2"),
    "NCCL_BLOCKING_WAIT": Renamed("TORCH_NCCL_BLOCKING_WAIT", "torch", "2.2"),
    "NCCL_DESYNC_DEBUG": Renamed("TORCH_NCCL_DESYNC_DEBUG", "torch", "2.2"),
    "NCCL_ENABLE_TIMING": Renamed("TORCH_NCCL_ENABLE_TIMING", "torch", "2.2"),
    "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": Renamed(
        "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "torch", "2.2"
    ),
    "TORCH_NCCL_TRACE_BUFFER_SIZE": Renamed("TORCH_FR_BUFFER_SIZE", "torch", "2.8"),
    "TORCH_NCCL_TRACE_CPP_STACK": Renamed("TORCH_FR_CPP_STACK", "torch", "2.8"),
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": Renamed("TORCH_FR_DUMP_TEMP_FILE", "torch", "2.8"),
    "PYTORCH_CUDA_ALLOC_CONF": Renamed("PYTORCH_ALLOC_CONF", "torch", "2.10", announced=False),
    "NCCL_MIN_NRINGS": Renamed("NCCL_MIN_CTAS", "nccl", "2.17", remark=CTAS),
    "NCCL_MAX_NRINGS": Renamed("NCCL_MAX_CTAS", "nccl", "2.17", remark=CTAS),
    "NCCL_MIN_NCHANNELS": Renamed("NCCL_MIN_CTAS", "nccl", "2.17", remark=CTAS),
    "NCCL_MAX_NCHANNELS": Renamed("NCCL_MAX_CTAS", "nccl", "2.17", remark=CTAS),
    "NCCL_CHECK_POINTERS": Renamed(
        "NCCL_CHECK_MODE", "nccl", "2.29", remark="1 is DEBUG_LOCAL now", announced=False
    ),
    "NCCL_IB_GDR_LEVEL": Renamed("NCCL_NET_GDR_LEVEL", "nccl", "2.4", works=False),
    "NCCL_IB_CUDA_SUPPORT": Renamed(
        "NCCL_NET_GDR_LEVEL", "nccl", "2.4", works=False, remark="1 is SYS now, and 0 is LOC"
    ),
    "NCCL_WORK_FIFO_DEPTH": Renamed(
        "NCCL_WORK_FIFO_BYTES", "nccl", "2.22", works=False, remark="in bytes"
    ),
    "NCCL_MNNVL": Renamed("NCCL_MNNVL_ENABLE", "nccl", "2.21", works=False),
}


def judge_renamed(setting: Setting, versions: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what is to be said of a name that has changed."""
    change = RENAMED.get(setting.name)
    if change is None:
        return
    new_enough = at_least(versions, change.library, change.since)
    if new_enough is False or (new_enough is None and not change.announced):
        return
    library = LIBRARIES[change.library]
    state = f"{library} still reads it" if change.works else f"{library} does not read it any more"
    remark = f"; {change.remark}" if change.remark else ""
    yield Finding(
        "variable-renamed",
        f"{setting.name} is called {change.new} since {library} {change.since}; {state}",
        where=setting.where,
        evidence=(setting.line,),
        why=(
            "the old name will go, and the two contradict when both are set"
            if change.works
            else "it has no effect"
        ),
        fix=f"{setting.name} -> {change.new}{remark}",
        severity="hint" if change.works else "warning",
    )
