"""What may be asked of ``paceline run``: torchrun's options with torchrun's meaning, and ours.

Pure: words in, a frozen value or a Finding out. Standard library only.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import Finding, UsageError, closest
from paceline.launch.plan import option_fit as fit
from paceline.launch.plan import preferences as preference
from paceline.launch.plan.option_fit import invalid
from paceline.launch.plan.option_table import (
    DEFAULT_PORT,
    EVENT_LOG_HANDLERS,
    NUMA_MODES,
    ON_HANG,
    OPTIONS,
    START_METHODS,
)
from paceline.launch.plan.preferences import Preferences
from paceline.launch.plan.slurm_step import Placed

_BY_NAME = {option.name: option for option in OPTIONS}
# Options that take any text.
_TEXTS = (
    *("local_addr", "log_dir", "logs_specs", "run_dir", "secret_file", "accelerate_config", "master_addr", "role"),
    *("rdzv_backend", "rdzv_endpoint", "rdzv_id", "log_line_prefix_template"),
)


@dataclass(frozen=True)
class Options:
    """``paceline run`` as asked for, checked; the names and defaults are those of ``OPTIONS``."""

    script: str
    script_args: tuple[str, ...] = ()
    min_nodes: int = 1
    max_nodes: int = 1
    nproc_per_node: str = ""
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int | None = None
    local_addr: str | None = None
    rdzv_backend: str = "static"
    rdzv_endpoint: str = ""
    rdzv_id: str = "none"
    rdzv_conf: tuple[tuple[str, str], ...] = ()
    standalone: bool = False
    max_restarts: int = 0
    monitor_interval: float = 0.1
    start_method: str = "fork"
    role: str = "default"
    module: bool = False
    no_python: bool = False
    run_path: bool = False
    log_dir: str | None = None
    redirects: str = "0"
    tee: str = "0"
    log_line_prefix_template: str = ""
    local_ranks_filter: tuple[int, ...] = ()
    duplicate_stdout_filters: tuple[str, ...] = ()
    duplicate_stderr_filters: tuple[str, ...] = ()
    event_log_handler: str = "null"
    logs_specs: str | None = None
    numa_binding: str | None = None
    signals_to_handle: tuple[str, ...] = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    shutdown_timeout: int | None = None
    virtual_local_rank: bool = False
    no_probe: bool = False
    nccl_debug: bool = False
    max_time: float | None = None  # seconds
    check: bool = False
    check_only: bool = False
    no_check: bool = False
    roll_call_timeout: float | None = None  # seconds; None: as long as torchrun waits, or less in a Slurm step
    node_timeout: float = 90.0  # seconds
    hang_timeout: float | None = None  # seconds; None: hangs that are not proven are notices
    on_hang: str = "stop"
    check_finite: bool = False
    check_replicas: int = 0  # optimizer steps; 0: never
    accelerate_config: str | None = None
    no_slurm: bool = False
    secret_file: str | None = None
    run_dir: str | None = None
    json: bool = False
    secret: str = field(default="", compare=False, repr=False)  # as the environment had it
    typed: tuple[tuple[str, str], ...] = field(default=(), compare=False)  # options as typed, to type them again
    placed: Placed = field(default=Placed(), compare=False)
    preferred: tuple[tuple[str, str], ...] = field(default=(), compare=False)  # option, and where it was decided
    warnings: tuple[Finding, ...] = field(default=(), compare=False)  # of options without effect

    @property
    def head_named(self) -> bool:
        """True if the head's address is one that other machines could use."""
        return bool(self.rdzv_endpoint) or self.master_addr not in fit.LOOPBACK

    def source_of(self, name: str) -> str:
        """Return who decided about an option: the command line, or where the preference stands."""
        return dict(self.preferred).get(name, _long(name))

    @property
    def one_node(self) -> bool:
        """True if no other node can take part."""
        return self.max_nodes == 1


def parse(
    script: str,
    script_args: tuple[str, ...],
    *,
    typed: Mapping[str, Any],
    inherited: Mapping[str, str],
    placed: Placed = Placed(),  # noqa: B008  # frozen
    preferences: Preferences | None = None,
) -> Options:
    """Check what was typed and what torchrun's ``PET_*`` variables say; the command line wins.

    Args:
        script: The script, module or program.
        script_args: Its arguments, not looked at.
        typed: ``{name: text}`` of the options on the command line, True for a flag.
        inherited: ``{name: text}`` from the environment.
        placed: What is taken from Slurm; the other two win.
        preferences: What this user or site has decided for all runs, with where that was decided.

    Raises:
        UsageError: A value is wrong, or options cannot work together.
    """
    raw: dict[str, Any] = dict(placed.values)
    raw |= {name: value for name, value in inherited.items() if name in _BY_NAME and not _BY_NAME[name].ours}
    preferred = preference.apply(preferences or {}, typed=typed, needs_probe=fit.NEEDS_PROBE)
    raw |= {name: value for name, (value, _) in preferred.items()}
    raw.update(typed)
    raw = {name: _trimmed(name, value) for name, value in raw.items()}
    fit.refuse_contradictions(raw, typed)
    low, high = _node_range(raw.get("nnodes", "1:1"))
    values: dict[str, Any] = {
        "min_nodes": low,
        "max_nodes": high,
        "node_rank": _integer(raw, "node_rank", low=0),
        "master_port": _port(raw),
        "rdzv_conf": _settings(raw.get("rdzv_conf", "")),
        "max_restarts": _integer(raw, "max_restarts", low=0),
        "monitor_interval": _seconds(raw, "monitor_interval"),
        "start_method": _choice(raw, "start_method", START_METHODS),
        "numa_binding": _choice(raw, "numa_binding", NUMA_MODES),
        "event_log_handler": _choice(raw, "event_log_handler", EVENT_LOG_HANDLERS),
        "local_ranks_filter": _ranks(raw.get("local_ranks_filter", "")),
        "redirects": _streams(raw, "redirects"),
        "tee": _streams(raw, "tee"),
        "duplicate_stdout_filters": _words(raw.get("duplicate_stdout_filters", "")),
        "duplicate_stderr_filters": _words(raw.get("duplicate_stderr_filters", "")),
        "signals_to_handle": _signals(raw.get("signals_to_handle")),
        "nproc_per_node": _nproc(raw.get("nproc_per_node", "")),
        "shutdown_timeout": _grace(raw),
        "max_time": _duration(raw, "max_time"),
        "roll_call_timeout": _duration(raw, "roll_call_timeout"),
        "node_timeout": _duration(raw, "node_timeout"),
        "hang_timeout": _duration(raw, "hang_timeout"),
        "on_hang": _choice(raw, "on_hang", ON_HANG),
        "check_replicas": _integer(raw, "check_replicas", low=1),
        "placed": placed,
        "preferred": tuple((name, source) for name, (_, source) in preferred.items()),
        "typed": tuple((name, "" if value is True else str(value)) for name, value in typed.items()),
    }
    for name in _TEXTS:
        if raw.get(name):
            values[name] = raw[name]
    for option in OPTIONS:
        if option.flag:
            values[option.name] = fit.is_true(raw.get(option.name, False))
    values = {name: value for name, value in values.items() if value is not None}
    return fit.settle(Options(script, script_args, **values), typed=typed, given=raw)


def _trimmed(name: str, value: Any) -> Any:
    """Return a value without blanks around it, as int() and float() read it for torchrun; texts stay as they are."""
    return value.strip() if isinstance(value, str) and name not in _TEXTS else value


def _node_range(text: str) -> tuple[int, int]:
    low, colon, high = str(text).partition(":")
    if not _is_number(low) or (colon and not _is_number(high)):
        raise invalid("nnodes", text, "is a number or a range MIN:MAX", "--nnodes 2")
    least, most = int(low), int(high or low)
    if least < 1 or most < least:
        raise invalid("nnodes", text, "needs at least one node and MIN not above MAX", "--nnodes 1")
    return least, most


def _nproc(text: str) -> str:
    if text in ("", "gpu", "cpu", "xpu", "auto"):
        return text
    if re.fullmatch(r"-?[0-9]+", text):
        if int(text) < 1:
            raise invalid("nproc_per_node", text, "needs at least one rank", "--nproc-per-node 1")
        return text
    near = closest(text, ("gpu", "cpu", "xpu", "auto"))
    raise invalid("nproc_per_node", text, "is a number, gpu, cpu, xpu or auto", f"--nproc-per-node {near or 2}")


def _port(raw: Mapping[str, Any]) -> int | None:
    text = raw.get("master_port")
    if text is None or text == "":
        return None
    if not _is_number(str(text)) or int(text) > 65535:
        raise invalid("master_port", str(text), "is a number from 0 to 65535", f"--master-port {DEFAULT_PORT}")
    return int(text)


def split_endpoint(endpoint: str, default_port: int) -> tuple[str, int]:
    """Split ``HOST[:PORT]`` or ``[IPV6]:PORT``.

    Raises:
        UsageError: The port is not a number from 0 to 65535, or the host is empty.
    """
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([\w.-]+))(?::(\d{1,6}))?", endpoint.strip())
    if not match or int(match[3] or 0) > 65535:
        raise invalid("rdzv_endpoint", endpoint, "is HOST:PORT", f"--rdzv-endpoint head:{default_port}")
    return match[1] or match[2], int(match[3]) if match[3] else default_port


def _is_number(text: str) -> bool:
    return re.fullmatch("[0-9]+", text) is not None  # str.isdigit also takes what int() does not


def _settings(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise invalid("rdzv_conf", part, "is KEY=VALUE,...", "--rdzv-conf join_timeout=600")
        pairs.append((key.strip(), value.strip()))
    return tuple(pairs)


def _integer(raw: Mapping[str, Any], name: str, *, low: int) -> int | None:
    text = raw.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"-?[0-9]+", str(text)) or int(text) < low:
        raise invalid(name, str(text), f"is a whole number from {low}", f"{_long(name)} {low}")
    return int(text)


def _seconds(raw: Mapping[str, Any], name: str) -> float | None:
    text = raw.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        example = _BY_NAME[name].default or 300
        raise invalid(name, str(text), "is a number of seconds above 0", f"{_long(name)} {example}")
    return value


_EXAMPLES = {"hang_timeout": "15m", "roll_call_timeout": "300"}


def _duration(raw: Mapping[str, Any], name: str) -> float | None:
    """Return the seconds of ``3600``, ``90m``, ``2h``, ``1d``, or of Slurm's ``M:S``, ``H:M:S`` and ``D-H[:M[:S]]``."""
    text = raw.get(name)
    if text is None:
        return None
    value = seconds_of(str(text))
    if not value > 0:
        rule = "is a time above 0: seconds, 90m, 2h, or as Slurm writes it, 1-12:00:00"
        raise invalid(name, str(text), rule, f"{_long(name)} {_EXAMPLES.get(name, '2h')}")
    return value


def seconds_of(text: str, *, bare_s: int = 1) -> float:
    """Return the seconds of a time, 0 if it is none.

    Args:
        text: ``90s``, ``90m``, ``2h``, ``1d``, or Slurm's ``M:S``, ``H:M:S`` and ``D-H[:M[:S]]``.
        bare_s: What a number without a unit counts; Slurm's own options count minutes.
    """
    if plain := re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)", text):
        return float(plain[1]) * {"": bare_s, "s": 1, "m": 60, "h": 3600, "d": 86400}[plain[2]]
    if not re.fullmatch(r"([0-9]+-)?[0-9]+(:[0-9]+){0,2}", text):
        return 0.0
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    missing = [0] * (3 - len(parts))
    hours, minutes, seconds = parts + missing if dash else missing + parts
    return float(int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds)


def _grace(raw: Mapping[str, Any]) -> int | None:
    name = "grace_s" if "grace_s" in raw else "shutdown_timeout"
    return _integer(raw, name, low=0)


def _choice(raw: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> str | None:
    text = raw.get(name)
    if text is None or text in choices:
        return text
    near = closest(str(text), choices)
    raise invalid(name, str(text), f"is one of {', '.join(choices)}", f"{_long(name)} {near or choices[0]}")


def _ranks(text: str) -> tuple[int, ...]:
    if not text:
        return ()
    if not re.fullmatch(r"\d+(,\d+)*", text.replace(" ", "")):
        raise invalid("local_ranks_filter", text, "is a list of local ranks", "--local-ranks-filter 0,1")
    return tuple(sorted({int(part) for part in text.replace(" ", "").split(",")}))


def _streams(raw: Mapping[str, Any], name: str) -> str:
    text = str(raw.get(name, "0"))
    if not re.fullmatch(r"[0-3]|(\d+:[0-3],)*\d+:[0-3]", text):
        raise invalid(name, text, "is 0 (none), 1 (stdout), 2 (stderr), 3 (both) or 0:1,1:2", f"{_long(name)} 3")
    return text


def streams_of(text: str, local_rank: int) -> int:
    """Return the streams that ``--redirects`` or ``--tee`` name for a local rank: bit 1 stdout, 2 stderr."""
    if ":" not in text:
        return int(text)
    pairs = (part.split(":") for part in text.split(","))
    return {int(rank): int(value) for rank, value in pairs}.get(local_rank, 0)


def _words(text: str) -> tuple[str, ...]:
    """Split at commas; a doubled comma stands for one, as in torchrun."""
    marker = "\0"
    return tuple(
        word.replace(marker, ",") for word in text.replace(",,", marker).split(",") if word.replace(marker, ",")
    )


def _signals(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    known = [entry.name for entry in signal.Signals]
    for name in names:
        if name not in known or name in ("SIGKILL", "SIGSTOP"):
            near = closest(name, [entry for entry in known if entry not in ("SIGKILL", "SIGSTOP")])
            raise invalid("signals_to_handle", name, "cannot be handled", f"--signals-to-handle {near or 'SIGTERM'}")
    return names


def _long(name: str) -> str:
    return _BY_NAME[name].long


def unknown_option(typed: str) -> UsageError:
    """Return the error for an option that does not exist, with the nearest that does."""
    word = typed.split("=", maxsplit=1)[0]
    style = str if "_" in word else lambda name: name.replace("_", "-")
    known = [style(f"--{option.name}") for option in OPTIONS]
    begun = [form for form in known if form.startswith(word)]
    near = " or ".join(begun) or closest(word, known)
    return UsageError(
        Finding(
            "option-unknown",
            f"paceline run has no option {word}",
            where="command line",
            fix=f"did you mean {near}?" if near else "paceline run --help lists them",
        )
    )
