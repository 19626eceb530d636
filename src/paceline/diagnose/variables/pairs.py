"""Check settings of NCCL that override or exclude each other."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.diagnose.variables.given import Settings
from paceline.diagnose.variables.lists import SHOWN, STRICT_SINCE, parse_choices
from paceline.errors import Finding
from paceline.text.wording import has_or_have, is_or_are

MOST_SOCKETS = 64  # MAX_SOCKETS of NCCL's net_socket
MOST_NAMED = 4


def judge_pairs(settings: Settings) -> Iterator[Finding]:
    """Yield the findings about settings of NCCL that contradict each other."""
    for check in _CHECKS:
        yield from check(settings)


def _p2p(settings: Settings) -> Iterator[Finding]:
    # 0 is LOC by an old numbering, and says the same as the switch.
    level = settings.text("NCCL_P2P_LEVEL")
    if settings.is_one("NCCL_P2P_DISABLE") and level not in ("", "LOC", "0"):
        yield settings.contradicted(
            ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"),
            f"NCCL_P2P_DISABLE=1 wins over NCCL_P2P_LEVEL={level}: all peer-to-peer transfers"
            " are off",
            why="disabling means level LOC, and the other level is not read",
            fix="unset NCCL_P2P_DISABLE to have the level, or NCCL_P2P_LEVEL to have none",
        )


def _infiniband(settings: Settings) -> Iterator[Finding]:
    disabled = settings.is_one("NCCL_IB_DISABLE")
    network = settings.text("NCCL_NET").lower()
    if disabled and network == "ib":
        yield settings.contradicted(
            ("NCCL_IB_DISABLE", "NCCL_NET"),
            "NCCL_NET=IB asks for InfiniBand and NCCL_IB_DISABLE=1 switches it off",
            why="no communicator can be made: Failed to initialize any NET plugin",
            fix="unset one of the two",
            severity="error",
        )
    # A plug-in may read NCCL_IB_*, as NVIDIA's ibext does; libfabric comes by a plug-in too.
    named_plugin = settings.text("NCCL_NET_PLUGIN").lower()
    plugin = named_plugin not in ("", "none") or settings.has("FI_PROVIDER")
    if plugin or not (disabled or network == "socket"):
        return
    cause = "NCCL_IB_DISABLE" if disabled else "NCCL_NET"
    read_by_ib = [name for name in settings.by_name if name.startswith("NCCL_IB_")]
    idle = [name for name in read_by_ib if name != "NCCL_IB_DISABLE" and settings.has(name)]
    if idle:
        yield settings.contradicted(
            (cause, *idle),
            f"{cause}={settings.text(cause)} leaves InfiniBand unused, and {_list(idle)}"
            f" {has_or_have(idle)} no effect",
            why="NCCL talks over TCP, which is several times slower where there is InfiniBand",
            fix=f"unset {cause} to use InfiniBand, or {_list(idle)} to stay with TCP",
        )


def _sockets(settings: Settings) -> Iterator[Finding]:
    names = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
    threads, sockets = (settings.number(name) for name in names)
    if threads and sockets and threads * sockets > MOST_SOCKETS:
        yield settings.contradicted(
            names,
            f"{threads} threads with {sockets} sockets each are {threads * sockets}, and NCCL opens"
            f" {MOST_SOCKETS}",
            why=(
                f"NCCL lowers NCCL_NSOCKS_PERTHREAD to {max(MOST_SOCKETS // threads, 1)} with a"
                " warning"
            ),
            fix=(
                f"NCCL_NSOCKS_PERTHREAD={max(MOST_SOCKETS // threads, 1)}, or 4 and 4 as NCCL"
                " suggests for 100 Gb/s"
            ),
        )
    network = settings.text("NCCL_NET").lower()
    efa = settings.text("FI_PROVIDER").lower() == "efa"
    idle = [name for name in names if settings.has(name)]
    if idle and (network == "ib" or efa) and network != "socket":
        cause = "FI_PROVIDER" if efa else "NCCL_NET"
        yield settings.contradicted(
            (cause, *idle),
            f"{_list(idle)} {is_or_are(idle)} for TCP, and {cause}={settings.text(cause)}",
            why="they have no effect on another network",
            fix=f"unset {_list(idle)}",
            severity="hint",
        )


def _efa(settings: Settings) -> Iterator[Finding]:
    if (
        settings.text("FI_PROVIDER").lower() == "efa"
        and settings.text("NCCL_NET").lower() == "socket"
    ):
        yield settings.contradicted(
            ("FI_PROVIDER", "NCCL_NET"),
            "FI_PROVIDER=efa is for EFA, and NCCL_NET=Socket makes NCCL use TCP",
            why="libfabric is not used at all, and TCP is several times slower than EFA",
            fix="unset NCCL_NET",
        )


def _limits(settings: Settings) -> Iterator[Finding]:
    for kind in ("CTAS", "NCHANNELS", "P2P_NCHANNELS"):
        names = (f"NCCL_MIN_{kind}", f"NCCL_MAX_{kind}")
        least, most = (settings.number(name) for name in names)
        # Zero and below leave the number to NCCL.
        if least is not None and most is not None and least > most > 0:
            yield settings.contradicted(
                names,
                f"{names[0]}={least} is more than {names[1]}={most}",
                why="NCCL takes the smaller for both",
                fix=f"{names[0]}={most}, or unset both",
            )


def _shared_memory(settings: Settings) -> Iterator[Finding]:
    if settings.is_one("NCCL_SHM_DISABLE") and settings.is_one("NCCL_CUMEM_HOST_ENABLE"):
        yield settings.contradicted(
            ("NCCL_SHM_DISABLE", "NCCL_CUMEM_HOST_ENABLE"),
            "NCCL_CUMEM_HOST_ENABLE=1 says how shared memory is allocated, and NCCL_SHM_DISABLE=1"
            " leaves it unused",
            why="GPUs without peer-to-peer talk through the network, even within a node",
            fix="unset NCCL_SHM_DISABLE",
            severity="hint",
        )
    if settings.is_zero("NCCL_CUMEM_ENABLE") and settings.number("NCCL_MNNVL_ENABLE") == 1:
        yield settings.contradicted(
            ("NCCL_CUMEM_ENABLE", "NCCL_MNNVL_ENABLE"),
            "NCCL_MNNVL_ENABLE=1 needs cuMem, which NCCL_CUMEM_ENABLE=0 switches off",
            why="1 means: fail where NVLink between nodes cannot be used",
            fix="unset NCCL_CUMEM_ENABLE, or NCCL_MNNVL_ENABLE=2",
        )


def _gid(settings: Settings) -> Iterator[Finding]:
    index = settings.number("NCCL_IB_GID_INDEX")
    ways = ("NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ROCE_VERSION_NUM")
    idle = [name for name in ways if settings.has(name)]
    # -1, the default, leaves the choice to NCCL, and then the other variables guide it.
    if index is not None and index >= 0 and idle:
        yield settings.contradicted(
            ("NCCL_IB_GID_INDEX", *idle),
            f"NCCL_IB_GID_INDEX={index} names the GID, and {_list(idle)} would choose one",
            why="they are read only where the index is not set",
            fix="unset NCCL_IB_GID_INDEX to let NCCL choose (2.21 or newer)",
        )
    if (
        settings.has("NCCL_IB_PKEY_VALUE")
        and settings.number("NCCL_IB_PKEY_VALUE") != -1  # its default: look for no key
        and settings.has("NCCL_IB_PKEY")
    ):
        yield settings.contradicted(
            ("NCCL_IB_PKEY", "NCCL_IB_PKEY_VALUE"),
            "NCCL_IB_PKEY_VALUE wins over NCCL_IB_PKEY",
            why="the key itself is looked for, and the index is not read",
            fix="unset NCCL_IB_PKEY",
        )


def _log(settings: Settings) -> Iterator[Finding]:
    level = settings.text("NCCL_DEBUG").upper()
    if settings.has("NCCL_DEBUG") and not level:
        return  # a shell has yet to fill it in
    if settings.has("NCCL_DEBUG_SUBSYS") and level in ("", "VERSION", "WARN"):
        yield settings.contradicted(
            ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS"),
            "NCCL_DEBUG_SUBSYS chooses among INFO lines, and NCCL_DEBUG"
            f" {f'is {level}' if level else 'is not set'}",
            why="no INFO line is written",
            fix="NCCL_DEBUG=INFO, or unset NCCL_DEBUG_SUBSYS",
            severity="hint",
        )
    # Unlike the subsystems, the file has a use with WARN: NCCL opens it for levels above VERSION.
    if settings.has("NCCL_DEBUG_FILE") and level in ("", "VERSION"):
        yield settings.contradicted(
            ("NCCL_DEBUG", "NCCL_DEBUG_FILE"),
            f"NCCL_DEBUG_FILE is set, and NCCL_DEBUG {f'is {level}' if level else 'is not set'}",
            why="nothing is written to the file",
            fix="NCCL_DEBUG=WARN or INFO, or unset NCCL_DEBUG_FILE",
            severity="hint",
        )


def _out_of_band(settings: Settings) -> Iterator[Finding]:
    if settings.has("NCCL_OOB_NET_IFNAME") and not settings.is_one("NCCL_OOB_NET_ENABLE"):
        yield settings.contradicted(
            ("NCCL_OOB_NET_ENABLE", "NCCL_OOB_NET_IFNAME"),
            "NCCL_OOB_NET_IFNAME is read with NCCL_OOB_NET_ENABLE=1 only, which is not set",
            why="ranks meet over the interface of NCCL_SOCKET_IFNAME",
            fix="NCCL_SOCKET_IFNAME=NAME, or NCCL_OOB_NET_ENABLE=1",
        )


def _switched_off(settings: Settings) -> Iterator[Finding]:
    """Check whether NCCL_ALGO allows only algorithms that another variable disables."""
    # An entry for one function, or one that excludes, leaves NCCL others to take.
    named = {
        name
        for choice in parse_choices(settings.text("NCCL_ALGO"))
        if not choice.function and not choice.excluded
        for name in choice.names
    }
    if not named:
        return
    for names, variable, off in (
        ({"nvls", "nvlstree"}, "NCCL_NVLS_ENABLE", settings.is_zero("NCCL_NVLS_ENABLE")),
        (
            {"collnetchain", "collnetdirect"},
            "NCCL_COLLNET_ENABLE",
            not settings.is_one("NCCL_COLLNET_ENABLE"),
        ),
        ({"pat"}, "NCCL_PAT_ENABLE", settings.is_zero("NCCL_PAT_ENABLE")),
    ):
        if named <= names and off:
            algorithms = " and ".join(SHOWN[name] for name in sorted(named))
            state = (
                f"{variable}={settings.text(variable)}"
                if settings.text(variable)
                else f"{variable} is not 1"
            )
            yield settings.contradicted(
                ("NCCL_ALGO", variable),
                f"NCCL_ALGO leaves {algorithms} alone, and {state}",
                why=(
                    f"no algorithm is left: since {STRICT_SINCE} NCCL fails, before it another one"
                    " is taken"
                ),
                fix="unset NCCL_ALGO",
                severity="error" if settings.at_least("nccl", STRICT_SINCE) else "warning",
            )


def _list(names: list[str]) -> str:
    listed = names[:MOST_NAMED]
    more = len(names) - len(listed)
    words = [*listed, f"{more} more"] if more else listed
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


_CHECKS = (
    _p2p,
    _infiniband,
    _sockets,
    _efa,
    _limits,
    _shared_memory,
    _gid,
    _log,
    _out_of_band,
    _switched_off,
)
