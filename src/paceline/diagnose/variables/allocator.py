"""Check the options of torch's allocator (PYTORCH_ALLOC_CONF), parsed strictly when it first uses a
GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from paceline.diagnose.variables.lists import Fault
from paceline.diagnose.variables.setting import Setting
from paceline.errors import closest

SWITCHES = frozenset(
    (
        "expandable_segments",
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "pinned_use_background_threads",
        "graph_capture_record_stream_reuse",
        "pinned_free_catch_all",
        "throw_on_cudamalloc_oom",
    )
)
OPTIONS = SWITCHES | frozenset(
    (
        "max_split_size_mb",
        "max_non_split_rounding_mb",
        "large_segment_size_mb",
        "garbage_collection_threshold",
        "roundup_power2_divisions",
        "backend",
        "per_process_memory_fraction",
        "pinned_num_register_threads",
        "pinned_max_round_threshold_mb",
        "pinned_max_cached_size_mb",
        "pinned_reserve_segment_size_mb",
    )
)
LEAST_SPLIT_MB = 20  # kLargeBuffer: the blocks in which torch packs 1 to 10 MiB


def allocator(setting: Setting) -> Fault | None:
    """Return the first fault in options of torch's allocator, ``option:value,option:value``."""
    return next(_faults(setting), None)


def _faults(setting: Setting) -> Iterator[Fault]:
    text = setting.text.strip("\"'")
    if "=" in text and ":" not in text:
        yield _fault(
            "an option and its value are separated by a colon",
            f"{setting.name}={text.replace('=', ':')}",
        )
        return
    # Brackets hold commas and colons of their own: ``roundup_power2_divisions:[256:1,512:2]``.
    for item in filter(None, re.sub(r"\[[^\]]*\]?", "[]", text).split(",")):
        option, colon, value = (part.strip() for part in item.partition(":"))
        # A name that is like none of ours may be that of a fork or of a newer torch.
        near = closest(option, OPTIONS)
        if option not in OPTIONS and near:
            yield _fault(f"torch's allocator has no option {option!r}", f"{option} -> {near}")
        elif option in OPTIONS and not colon:
            yield _fault(
                f"{option} has no value", f"{option}:{'True' if option in SWITCHES else 'VALUE'}"
            )
        else:
            yield from _value(option, value)


def _value(option: str, value: str) -> Iterator[Fault]:
    # torch's parser compares with these two words, and ``true`` ends the program.
    if option in SWITCHES and value not in ("True", "False"):
        boolean = "False" if value.lower() in ("false", "0", "off", "no") else "True"
        yield _fault(f"{option} is True or False, written so", f"{option}:{boolean}")
    elif option == "max_split_size_mb" and value.isdecimal() and int(value) < LEAST_SPLIT_MB:
        yield _fault(f"max_split_size_mb is {LEAST_SPLIT_MB} at least", "max_split_size_mb:128")
    elif (
        option == "garbage_collection_threshold"
        and re.fullmatch(r"[\d.]+", value)
        and not re.match(r"0?\.\d", value)
    ):
        yield _fault(
            "garbage_collection_threshold lies between 0 and 1", "garbage_collection_threshold:0.8"
        )


def _fault(text: str, fix: str) -> Fault:
    return Fault(text, fix, "torch ends with an error when it first uses a GPU", "error")
