"""Recognise variables of NCCL, torch and the libraries below them, and find the real name closest
to a wrong one.

In a *closed* family only the library and its known plug-ins read names, so an unknown name is a
mistake. In an *open* family (libfabric, UCX, CUDA, OpenMP and so on) only the usual names are
known, and only names one or two letters away from one of them are reported.
"""

from __future__ import annotations

import difflib
import re
from functools import cache

from paceline.diagnose.variables.folklore import folklore
from paceline.diagnose.variables.table import known

CLOSED = (
    "NCCL_",
    "TORCH_NCCL_",
    "TORCH_FR_",
    "TORCH_DISTRIBUTED_",
    "TORCH_DIST_",
    "TORCHELASTIC_",
    "GLOO_",
)
OPEN: tuple[str, ...] = ("FI_", "RDMAV_", "OFI_NCCL_", "UCX_", "SHARP_")
OPEN += ("CUDA_", "OMP_", "KMP_", "GOMP_", "MKL_", "PET_", "TP_", "PYTORCH_")
OPEN += ("TORCH_ELASTIC_", "TORCH_GLOO_", "TORCH_INCLUDE_", "TORCH_CPP_", "TORCH_SHOW_")
# Read by plug-ins and tools that are not NCCL (Google's, NVIDIA's inspector), whose names change
# with each release.
PLUGINS = re.compile(
    r"NCCL_(FASTRAK|GPUDIRECTTCPX?O?|SHIMNET|INSPECTOR|PROFILE|TUNER|UCX|SHARP|TESTS|OFI|GIB|TELEMETRY|RCCL|MSCCL|"
    r"DOCA|NMX)_\w+|NCCL_DYNAMIC_CHUNK_SIZE"
)
# Where NCCL is installed or built: read by setup scripts, not by NCCL.
LOCAL_NAMES = re.compile(
    r"(TORCH_)?NCCL_(\w+_)?(HOME|ROOT|DIRS?|PATHS?|PREFIX|LIB|LIBS|LIBRARY|LIBRARIES|INC|INCLUDES?|VERSION|VER|MAJOR|"
    r"MINOR|SRC|SOURCE|BIN|BUILD|PKG|MODULE|TAG|BRANCH|COMMIT|REPO|URL|ARGS|OPTS|FLAGS|CFLAGS|LDFLAGS|VARS|ENVS?|"
    r"LOGS?|OUTPUT|RESULTS?|INSTALL|STATIC|ARCH)"
)
PREFIXES_MISSPELT = re.compile(
    r"(NCLL|NCCCL|NNCCL|NCL|NCC|NCCLL|TORCH_NCLL|TROCH_NCCL|PYTORCH_NCCL|GOO|GLLO)_(?=\w)"
)
# Real names are as near to each other (NCCL_MIN_CTAS, NCCL_MAX_CTAS): with more it is chance.
NEAR = 2
# Endings that complete a truncated name, most likely first.
ENDINGS = ("ENABLE", "DISABLE", "LEVEL", "INDEX", "SIZE", "PLUGIN")


def is_relevant(name: str) -> bool:
    """Return whether a variable is meant for NCCL, torch's distributed parts, or the libraries
    below them.
    """
    return (
        name in known() or name.startswith((*CLOSED, *OPEN)) or bool(PREFIXES_MISSPELT.match(name))
    )


def is_closed(name: str) -> bool:
    """Return whether an unknown name is a mistake."""
    return bool(PREFIXES_MISSPELT.match(name)) or (
        name.startswith(CLOSED) and not PLUGINS.fullmatch(name) and not LOCAL_NAMES.fullmatch(name)
    )


def closest_real(name: str) -> str:
    """Return the real name that was likely meant, an empty string if none is near."""
    if name in known():
        return name
    story = folklore(name)
    if story:
        # The advice may begin with a variable, or be something else to do, which is no name.
        real = re.match(r"[A-Z][A-Z0-9]*_[A-Z0-9_]+", story.instead)
        return real[0] if real and real[0] in known() else ""
    # The surest first: NCCL_DISABLE_P2P has all words of one name, and is many letters from it.
    same_words = _other_order(name) or _other_prefix(name)
    return same_words or _near(name) or _longer(name)


@cache
def _near(name: str) -> str:
    # Short names are near to many: one edit for five letters, and for eight in an open family,
    # where the name may be one that we have not heard of.
    letters = min(NEAR, len(name) // (5 if is_closed(name) else 8))
    family = name.split("_", maxsplit=1)[0]
    same = [
        real
        for real in _living()
        if real.startswith(family[:2]) and abs(len(real) - len(name)) <= letters
    ]
    nearest = min(same, key=lambda real: (distance(name, real, letters), real), default="")
    if nearest and distance(name, nearest, letters) <= letters:
        return nearest
    return _alike(name) if is_closed(name) else ""


def _longer(name: str) -> str:
    """Complete a truncated name: ``NCCL_IB_GID`` is ``NCCL_IB_GID_INDEX``."""
    if not is_closed(name):
        return ""
    return next((f"{name}_{ending}" for ending in ENDINGS if f"{name}_{ending}" in _living()), "")


def _alike(name: str) -> str:
    """Match longer words for the same thing: ``NCCL_SOCKET_INTERFACE_NAME``,
    ``NCCL_DEBUG_SUBSYSTEM``.
    """
    family, _, rest = name.partition("_")
    rests = {real.partition("_")[2]: real for real in _living() if real.startswith(f"{family}_")}
    # Without the family: a prefix that all names share would make any two of them look alike.
    matches = difflib.get_close_matches(rest, list(rests), n=1, cutoff=0.8)
    return rests[matches[0]] if matches else ""


def _other_order(name: str) -> str:
    """Match the same words in another order: ``NCCL_DISABLE_P2P`` is ``NCCL_P2P_DISABLE``."""
    words = sorted(_stem(word) for word in name.split("_"))
    return next(
        (real for real in _living() if sorted(_stem(word) for word in real.split("_")) == words), ""
    )


def _other_prefix(name: str) -> str:
    """Match the words after another prefix: ``TORCH_NCCL_DEBUG``, ``NCLL_DEBUG``,
    ``NCCL_HEARTBEAT_TIMEOUT_SEC``.
    """
    rest = re.sub(r"^(TORCH_|PYTORCH_)?(NCCL|NCLL|NCCCL|NNCCL|NCL|NCC|NCCLL|FR)_", "", name)
    if rest == name:
        return ""
    options = (f"{prefix}{rest}" for prefix in ("NCCL_", "TORCH_NCCL_", "TORCH_FR_"))
    return next((real for real in options if real in known() and not known()[real].until), "")


def _stem(word: str) -> str:
    return {
        "DISABLED": "DISABLE",
        "ENABLED": "ENABLE",
        "NTHREAD": "NTHREADS",
        "DEVICE": "DEVICES",
    }.get(word, word)


@cache
def _living() -> tuple[str, ...]:
    return tuple(name for name, variable in known().items() if not variable.until)


def distance(one: str, other: str, limit: int) -> int:
    """Return the edit distance of two names; a swap of two letters counts as one edit."""
    if abs(len(one) - len(other)) > limit:
        return limit + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for index, letter in enumerate(one, 1):
        before, last, row = row, before, [index]
        for place, other_letter in enumerate(other, 1):
            cost = min(before[place] + 1, row[-1] + 1, before[place - 1] + (letter != other_letter))
            is_swap = place > 1 and letter == other[place - 2] and one[index - 2] == other_letter
            if last and is_swap:
                cost = min(cost, last[place - 2] + 1)
            row.append(cost)
        if min(row) > limit:  # no later row can be nearer; the names are some hundreds
            return limit + 1
    return row[-1]
