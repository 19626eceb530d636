"""Check values that are lists: algorithms, protocols, interfaces, cards and subsystems."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.diagnose.variables.setting import Setting
from paceline.diagnose.variables.versions import at_least
from paceline.errors import closest
from paceline.machine import nccl_lists

ALGORITHMS = {
    "ring": "2.5",
    "tree": "2.5",
    "collnetchain": "2.14",
    "collnetdirect": "2.14",
    "nvls": "2.17",
    "nvlstree": "2.18",
    "pat": "2.23",
}
PROTOCOLS = {"ll": "2.5", "ll128": "2.5", "simple": "2.5"}
# NCCL ignores case; these are the spellings of its manual.
SHOWN = {name: name.upper() for name in ("nvls", "pat", "ll", "ll128")}
SHOWN |= {"ring": "Ring", "tree": "Tree", "nvlstree": "NVLSTree", "simple": "Simple"}
SHOWN |= {"collnetchain": "CollnetChain", "collnetdirect": "CollnetDirect"}
FUNCTIONS: tuple[str, ...] = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
FUNCTIONS += ("sendrecv", "send", "recv", "alltoall", "gather", "scatter", "allgatherv")
# Before 2.14 there was one of that name. FORKED are names of NCCL's forks, which are not checked.
OLD_ALGORITHMS = ("collnet",)
FORKED = ("msccl", "mscclpp", "rccl")
# Since then a list is parsed with prefixes, and a word in it that NCCL does not know is fatal.
STRICT_SINCE = "2.24"
SUBSYSTEMS = frozenset(
    (
        "INIT",
        "COLL",
        "P2P",
        "SHM",
        "NET",
        "GRAPH",
        "TUNING",
        "ENV",
        "ALLOC",
        "ALLOC_HOST",
        "CALL",
        "PROXY",
        "NVLS",
        "BOOTSTRAP",
        "REG",
        "PROFILE",
        "RAS",
        "DESTROY",
        "ALL",
        "CE",
        "SYM",
    )
)
INTERFACE = re.compile(r"ib\d+|eth\d*|eno\d+\w*|ens\d+\w*|enp\w+|hsn\d*|bond\d+|docker\d*|lo|br\d+")


@dataclass(frozen=True)
class ListChoice:
    """One entry of NCCL_ALGO or NCCL_PROTO, such as ``allreduce:tree,ring`` or ``^tree``."""

    function: str  # the collective to which it applies; empty for all
    excluded: bool  # whether the names are excluded
    names: tuple[str, ...]  # the algorithms or protocols, in lower case


def parse_choices(value: str) -> list[ListChoice]:
    """Return the entries of a value of NCCL_ALGO or NCCL_PROTO, as NCCL 2.24 and newer parse
    them.
    """
    choices = []
    for entry in filter(None, value.strip().lower().split(";")):
        function, colon, names = entry.partition(":")
        listed = names.partition(":")[0] if colon else function  # strtok: a second colon ends it
        excluded = listed.startswith("^")
        tokens = tuple(filter(None, listed.removeprefix("^").split(",")))
        choices.append(ListChoice(function if colon else "", excluded, tokens))
    return choices


@dataclass(frozen=True)
class Fault:
    """A fault in a value."""

    text: str  # the fault, as the end of a sentence that begins with the setting
    fix: str  # what to write instead
    why: str  # the consequence
    severity: str = "warning"  # its severity


def algorithms(setting: Setting, versions: Mapping[str, str]) -> Fault | None:
    """Return the first fault in a value of NCCL_ALGO or NCCL_PROTO."""
    strict = at_least(versions, "nccl", STRICT_SINCE)
    for index, choice in enumerate(parse_choices(setting.value)):
        # NCCL refuses it since it would override all functions that stand before it.
        if index and not choice.function:
            return Fault(
                f"the entry {','.join(choice.names)!r} behind the semicolon names no function",
                f"{setting.name}={setting.text.replace(';', ',')}, or allreduce:... behind the"
                " semicolon",
                "NCCL fails with All entries except the first must have a prefix",
                "error" if strict else "warning",
            )
        if choice.function and choice.function not in FUNCTIONS:
            return _unknown_word(choice.function, FUNCTIONS, setting, strict)
        for name in choice.names:
            fault = _fault_of_name(name, setting, versions, strict)
            if fault is not None:
                return fault
    return None


def _fault_of_name(
    name: str, setting: Setting, versions: Mapping[str, str], strict: bool | None
) -> Fault | None:
    """Return the fault of an algorithm or protocol in a list; None if NCCL knows it."""
    words = ALGORITHMS if setting.name == "NCCL_ALGO" else PROTOCOLS
    # In ``allreduce:tree,broadcast:ring`` a comma has made a name of the second function.
    if name in FUNCTIONS:
        return _comma_for_semicolon(setting, name, strict)
    is_old = name in OLD_ALGORITHMS and at_least(versions, "nccl", "2.14") is False
    if name in FORKED or is_old:
        return None
    if name not in words:
        return _unknown_word(name, words, setting, strict)
    if at_least(versions, "nccl", words[name]) is not False:
        return None  # also where the version is unknown: nothing is wrong then that could be shown
    return Fault(
        f"NCCL has {SHOWN[name]} since {words[name]}, and {versions['nccl']} is installed",
        f"unset {setting.name}",
        "the word is ignored, and what is left of the list limits the choice",
    )


def _comma_for_semicolon(setting: Setting, name: str, strict: bool | None) -> Fault:
    return Fault(
        f"{name!r} stands where an algorithm or protocol is expected",
        f"{setting.name}={setting.text.replace(f',{name}', f';{name}')}",
        "functions are separated by semicolons, and NCCL fails with Unrecognized element token",
        "error" if strict else "warning",
    )


def _unknown_word(
    word: str, words: Mapping[str, str] | tuple[str, ...], setting: Setting, strict: bool | None
) -> Fault:
    near = closest(word.strip(), words)
    spelling = SHOWN.get(near, near)
    kinds = "algorithm" if setting.name == "NCCL_ALGO" else "protocol"
    if words is FUNCTIONS:
        kinds = "function"
    why = {
        True: "communicators cannot be made: Unrecognized element token",
        False: "the word is ignored, and what is left of the list limits the choice",
        None: (
            f"since {STRICT_SINCE} NCCL fails with Unrecognized element token, before it the word"
            " is ignored"
        ),
    }[strict]
    listed = ", ".join(SHOWN.get(name, name) for name in words)
    if word.strip() in words:  # ``Ring, Tree``: NCCL splits at the comma and trims nothing
        fix = f"{setting.name}={setting.text.replace(' ', '')}: blanks are part of a word"
        return Fault(f"NCCL has no {kinds} {word!r}", fix, why, "error" if strict else "warning")
    fix = f"{word} -> {spelling}" if near else f"unset {setting.name}, or choose from {listed}"
    return Fault(f"NCCL has no {kinds} {word!r}", fix, why, "error" if strict else "warning")


def interfaces(setting: Setting) -> Fault | None:
    """Return the first fault in NCCL_SOCKET_IFNAME: a list of prefixes, with one ``^`` or ``=``
    before it.
    """
    return _misplaced_mark(setting) or _fault_of_names(setting)


def _misplaced_mark(setting: Setting) -> Fault | None:
    """Return the fault of a ``^`` or ``=`` within a list, or in the wrong order before it."""
    value = setting.text
    names = [entry.prefix for entry in nccl_lists.parse(value).entries]
    mark = next((name[0] for name in names[1:] if name.startswith(("^", "="))), "")
    if mark:
        first_marks = re.match(r"[\^=]*", value)
        plain_names = ",".join(name.strip().lstrip("^=") for name in names)
        return Fault(
            f"{mark} counts before the whole list only, and stands within it",
            f"{setting.name}={(first_marks and first_marks[0]) or mark}{plain_names}",
            f"NCCL looks for an interface whose name begins with {mark}",
        )
    # NCCL looks for ^ and then for = once each, so that =^ reads ^ as part of the first name.
    if value.startswith("=^"):
        return Fault(
            "the marks are in the wrong order",
            f"{setting.name}=^={value[2:]}",
            "nothing is excluded",
        )
    return None


def _fault_of_names(setting: Setting) -> Fault | None:
    """Return the fault of names that cannot be those of interfaces."""
    value = setting.text
    names = [entry.prefix for entry in nccl_lists.parse(value).entries]
    if names and all("*" in name for name in names):
        return Fault(
            "NCCL knows no wildcards: a name is the beginning of one anyway",
            f"{setting.name}={value.replace('*', '') or 'eth'}",
            "no interface has a * in its name: no socket interface found",
            # To exclude what does not exist leaves all interfaces, and the job may well run.
            "warning" if value.startswith("^") else "error",
        )
    if re.search(r"[;\s]", value):
        list_text = ",".join(filter(None, re.split(r"[;,\s]+", value)))
        return Fault(
            "names are separated by commas",
            f"{setting.name}={list_text}",
            "the rest is taken as part of the name",
        )
    if re.fullmatch(r"\d+(\.\d+){3}(/\d+)?", value):
        return Fault(
            "an address is not the name of an interface",
            "ip -br address: its first column is the name",
            "",
        )
    return None


def cards(setting: Setting) -> Fault | None:
    """Return a fault if NCCL_IB_HCA has network interfaces (``ib0``) instead of cards
    (``mlx5_0``).
    """
    cards = nccl_lists.parse(setting.text)
    names = [entry.prefix.strip() for entry in cards.entries]
    # To exclude interfaces does no harm. One name that may be a card's is enough for silence, since
    # udev names cards too (ibp, rocep1s0f1).
    if cards.excluded or not names or not all(INTERFACE.fullmatch(name) for name in names):
        return None
    return Fault(
        "this looks like a network interface, and NCCL takes the names of cards here",
        f"{setting.name}=mlx5, or the names that ibstat -l or ls /sys/class/infiniband shows",
        "no card has this name: NCCL silently uses TCP",
    )


def exact_interfaces(setting: Setting) -> Fault | None:
    """Return a fault if GLOO_SOCKET_IFNAME has NCCL's marks: gloo takes whole names."""
    value = setting.text
    if value[0] not in "^=" and "*" not in value:
        return None
    return Fault(
        "gloo takes whole names of interfaces; ^ and = and * are NCCL's or nobody's",
        (
            f"{setting.name}={value[1:]}"
            if value[0] == "="
            else f"{setting.name}=NAME, one of ip -br address"
        ),
        f"a gloo group cannot be made: Unable to find address for: {value.split(',')[0]}",
    )


def subsystems(setting: Setting) -> Fault | None:
    """Return a fault if NCCL_DEBUG_SUBSYS has an unknown name."""
    names = setting.text.lstrip("^").upper().split(",")
    wrong = next((name for name in names if name.strip() and name not in SUBSYSTEMS), None)
    if wrong is None:
        return None
    near = closest(wrong, SUBSYSTEMS)
    fix = (
        f"{wrong} -> {near}"
        if near
        # without the two that only the newest versions have
        else f"choose from {', '.join(sorted(SUBSYSTEMS - {'CE', 'SYM'}))}"
    )
    return Fault(f"NCCL has no subsystem {wrong!r}", fix, "its lines are not shown", "hint")
