"""Check values that a library does not understand, and report how it reads them.

NCCL reads numbers as C does: ``4M`` is silently 4, and ``true`` is 0. torch is strict: a value that
is not a boolean or a number ends the program when the process group is created.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from paceline.diagnose.variables import lists
from paceline.diagnose.variables.allocator import allocator
from paceline.diagnose.variables.given import TORCH_TRUE
from paceline.diagnose.variables.lists import Fault
from paceline.diagnose.variables.setting import Setting, leading_number, number
from paceline.diagnose.variables.table import KnownVariable, known
from paceline.diagnose.variables.versions import at_least
from paceline.errors import Finding, closest

TRUE = ("true", "yes", "on", "y", "t", "enable", "enabled")
FALSE = ("false", "no", "off", "n", "f", "disable")
# With TORCH_TRUE all that torch's getCvarBool takes. It trims nothing: ``1`` with a blank ends it.
TORCH_FALSE = ("n", "no", "0", "f", "false")
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
# All words that NCCL compares with, and those that a user would choose, which a fix suggests.
LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
COMMON_LEVELS = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")
# Words for a kind of network, which no plug-in that we know is called. NCCL compares the value with
# the names of its networks and of its plug-ins, so any other word may be right.
NO_NETWORKS = re.compile(
    r"(sockets|tcp|tcp/ip|eth(ernet)?\d*|infiniband|ib\d+|ibv?erbs|verbs|roce|rdma|efa|mlx5\w*)",
    re.I,
)
# What other programs call a level. NCCL has no word for none: to log nothing, unset the variable.
DEBUG_WORDS = dict.fromkeys(("debug", "1", "true", "on", "yes", "verbose", "all"), "INFO")
DEBUG_WORDS |= dict.fromkeys(("error", "warning"), "WARN")
DEBUG_WORDS |= dict.fromkeys(("0", "off", "none", "false"), "")


def judge_value(setting: Setting, versions: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the finding about a value that its library does not understand."""
    variable = known().get(setting.name)
    if variable is None or not setting.is_plain:
        return
    fault = _fault(setting, variable, versions)
    if fault is not None:
        yield Finding(
            "variable-unknown",
            f"{setting.name}={setting.text}: {fault.text}",
            where=setting.where,
            evidence=(setting.line,),
            why=fault.why,
            fix=fault.fix,
            severity=fault.severity,
        )


def _fault(setting: Setting, variable: KnownVariable, versions: Mapping[str, str]) -> Fault | None:
    if variable.kind in ("algorithms", "protocols"):
        return lists.algorithms(setting, versions)
    if setting.name == "NCCL_DEBUG":
        return _debug(setting, versions)
    check = _KINDS.get(variable.kind)
    return check(setting, variable) if check else None


def _flag(setting: Setting, variable: KnownVariable) -> Fault | None:
    value = number(setting.text)
    # NCCL tests most flags for zero, so that 2 does what it promises; NCCL_P2P_DISABLE=2 does not,
    # since that one is compared with 1.
    if value in (0, 1) or (
        value is not None and variable.name not in ("NCCL_P2P_DISABLE", "NCCL_CUMEM_ENABLE")
    ):
        return None
    if value is not None:
        return Fault(
            "it is 0 or 1", f"{setting.name}=1 or {setting.name}=0", "no other number has a meaning"
        )
    return _read_as(setting, meant="1" if setting.text.lower() in TRUE else "0")


def _read_as(setting: Setting, meant: str) -> Fault:
    """Return the fault that C's strtoll reads only the number at the start of a word, or 0."""
    read = leading_number(setting.text)
    same = str(read) == meant
    return Fault(
        f"NCCL takes a number here and reads {read}",
        f"{setting.name}={meant}",
        "which happens to be what was meant" if same else "so the setting does not do what it says",
        "hint" if same else "warning",
    )


def _number(setting: Setting, variable: KnownVariable) -> Fault | None:
    value = number(setting.text)
    if value is None:
        read = leading_number(setting.text)
        return (_outside(setting, variable, read) if read else None) or _read_as(
            setting, meant=_meant(setting)
        )
    # A value that the cards take: the InfiniBand specification has 0 for a timer that never ends.
    if variable.name == "NCCL_IB_TIMEOUT" and value == 0:
        return Fault(
            "0 means without an end",
            f"unset {setting.name}",
            "a lost packet hangs the job for ever",
            "hint",
        )
    return _outside(setting, variable, value)


def _meant(setting: Setting) -> str:
    word = setting.text.lower()
    if word in FALSE:
        return "0"
    if word in TRUE:
        return "1"
    if word.isdecimal():
        return str(int(word))  # NCCL's strtoll would take 010 for eight
    return str(leading_number(word) or "NUMBER")


def _outside(setting: Setting, variable: KnownVariable, value: int) -> Fault | None:
    low, high = variable.low, variable.high
    is_below = low is not None and value < low
    is_above = high is not None and value > high
    if not is_below and not is_above:
        return None
    limits = (("from", low), ("to", high))
    span = " ".join(f"{word} {limit}" for word, limit in limits if limit is not None)
    nearest = low if is_below else high
    return Fault(
        f"its values go {span}",
        f"{setting.name}={nearest}, or unset"
        f" it{f': the default is {variable.default}' if variable.default else ''}",
        _OUTSIDE.get(variable.name, "it is cut off, ignored or taken for something else"),
    )


_OUTSIDE = {
    "NCCL_IB_TIMEOUT": "more than 31 means without an end: a lost packet hangs the job for ever",
    "NCCL_IB_RETRY_CNT": "the cards have three bits for it",
}


def _size(setting: Setting, variable: KnownVariable) -> Fault | None:
    value = number(setting.text)
    if value is not None:
        return None if value >= 0 else _outside(setting, variable, value)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)i?b?(?:ytes?)?", setting.text.lower())
    num_bytes = int(float(match[1]) * UNITS[match[2]]) if match else None
    return Fault(
        f"NCCL takes bytes without a unit here and reads {leading_number(setting.text)}",
        (
            f"{setting.name}={num_bytes}"
            if num_bytes
            else f"{setting.name}=NUMBER, in bytes, or unset it ({variable.default})"
        ),
        "a buffer of a few bytes is slow or fails",
    )


def _threads(setting: Setting, variable: KnownVariable) -> Fault | None:
    value = number(setting.text)
    # NCCL falls back to its own number for zero and below, which is how scripts say automatic.
    if value is None or value <= 0:
        return _number(setting, variable) if value is None else None
    if value % 32:
        return Fault(
            "it is a multiple of 32",
            f"unset {setting.name}",
            "NCCL takes the greatest number instead",
        )
    return _outside(setting, variable, value)


def _level(setting: Setting, variable: KnownVariable) -> Fault | None:
    # As it is written: NCCL compares with strcmp, so a blank behind SYS makes it another word. A
    # value that begins with a digit is an old level by number, of which harm.py tells.
    value = setting.value
    if value in LEVELS or value[:1].isdecimal():
        return None
    upper = setting.text.upper()
    near = upper if upper in LEVELS else closest(upper, COMMON_LEVELS)
    return Fault(
        f"NCCL takes {', '.join(COMMON_LEVELS)} here, in capitals and nothing else",
        f"{setting.name}={near}" if near else f"unset {setting.name}, or choose one of them",
        "a value that it does not know is silently ignored",
    )


def _choice(setting: Setting, variable: KnownVariable) -> Fault | None:
    if setting.text.upper() in variable.values:
        return None
    near = closest(setting.text.upper(), variable.values)
    library = {"nccl": "NCCL"}.get(variable.library, variable.library)
    return Fault(
        f"{library} takes {', '.join(variable.values)} here",
        f"{setting.name}={near}" if near else f"unset {setting.name}, or choose one of them",
        (
            "the program ends when torch.distributed is imported"
            if variable.fatal
            else "the setting has no effect"
        ),
        "error" if variable.fatal else "warning",
    )


def _debug(setting: Setting, versions: Mapping[str, str]) -> Fault | None:
    level = setting.text.upper()
    if level == "ATTN" and at_least(versions, "nccl", "2.32") is False:
        return Fault(
            "NCCL has this level since 2.32", "NCCL_DEBUG=WARN", "nothing is logged at all"
        )
    levels = known()["NCCL_DEBUG"].values
    if level in levels:
        return None
    level_name = DEBUG_WORDS.get(setting.text.lower(), closest(level, levels) or "INFO")
    return Fault(
        "NCCL has the levels VERSION, WARN, INFO and TRACE",
        f"NCCL_DEBUG={level_name}" if level_name else "unset NCCL_DEBUG",
        (
            "nothing is logged, not even warnings"
            if level_name
            else "which is the same: nothing is logged"
        ),
        "warning" if level_name else "hint",
    )


def _network(setting: Setting, variable: KnownVariable) -> Fault | None:
    if not NO_NETWORKS.fullmatch(setting.text):
        return None
    fix = "unset NCCL_NET" if setting.text.lower() == "efa" else "NCCL_NET=IB"
    if re.match(r"sockets|tcp|eth", setting.text, re.I):
        fix = "NCCL_NET=Socket"
    return Fault(
        "NCCL's own networks are IB and Socket; any other name is that of a plug-in",
        fix,
        "without a plug-in of this name no communicator can be made: Failed to initialize any NET"
        " plugin",
    )


def _bool(setting: Setting, variable: KnownVariable) -> Fault | None:
    value = setting.value.lower()  # as it is written: torch trims no blank
    if value in (*TORCH_TRUE, *TORCH_FALSE):
        return None
    word = setting.text.lower()
    boolean = "0" if word in FALSE else ""
    if word in (*TRUE, *TORCH_TRUE):
        boolean = "1"
    return Fault(
        "torch takes 1, true, yes or 0, false, no here",
        f"{setting.name}={boolean}" if boolean else f"{setting.name}=1 or {setting.name}=0",
        f"the process group cannot be made: Invalid value for environment variable: {setting.name}",
        "error",
    )


def _integer(setting: Setting, variable: KnownVariable) -> Fault | None:
    # What std::stoi reads, with which torch parses: it raises without a digit at the start, and
    # drops what follows the digits.
    match = re.match(r"\s*[+-]?\d+", setting.value)
    if match is None:
        return Fault(
            "torch takes a number here",
            f"{setting.name}={_meant(setting)}",
            "the process group cannot be made: Invalid value for environment variable:"
            f" {setting.name}",
            "error",
        )
    if match[0].strip() != setting.text:
        return Fault(
            f"torch reads {match[0].strip()}",
            f"{setting.name}={match[0].strip()}",
            "the rest is ignored",
        )
    return _outside(setting, variable, int(match[0]))


def _zero_one(setting: Setting, variable: KnownVariable) -> Fault | None:
    # c10's check_env warns of any other value, true and false included, and takes the default.
    if setting.value in ("0", "1"):
        return None
    return Fault(
        "torch takes 0 or 1 here",
        f"{setting.name}=1 or {setting.name}=0",
        "it is ignored with a warning",
    )


def _threads_list(setting: Setting, variable: KnownVariable) -> Fault | None:
    if re.fullmatch(r"\s*[1-9]\d*\s*(,\s*[1-9]\d*\s*)*", setting.value):
        return None
    return Fault(
        "it is a number of threads",
        f"{setting.name}=8",
        "it is ignored: as many threads as there are CPUs",
    )


_KINDS: dict[str, Callable[[Setting, KnownVariable], Fault | None]] = {
    "flag": _flag,
    "number": _number,
    "size": _size,
    "threads": _threads,
    "level": _level,
    "choice": _choice,
    "network": _network,
    "bool": _bool,
    "integer": _integer,
    "zero-one": _zero_one,
    "threads-list": _threads_list,
    "cards": lambda setting, _: lists.cards(setting),
    "interfaces": lambda setting, _: lists.interfaces(setting),
    "exact-interfaces": lambda setting, _: lists.exact_interfaces(setting),
    "subsystems": lambda setting, _: lists.subsystems(setting),
    "allocator": lambda setting, _: allocator(setting),
}
