"""Parse the options of ``paceline run`` from the command line, variables and preferences. Pure.

Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from paceline.errors import Finding, UsageError, closest
from paceline.launch.plan import preferences
from paceline.launch.plan.option import contradiction, invalid, is_true, long_form
from paceline.launch.plan.options import DEFAULT_C10D_PORT, OPTION, OPTIONS, RDZV_BACKENDS, Options
from paceline.launch.plan.preferences import Preferences
from paceline.launch.plan.starter_defaults import StarterDefaults

# Options that do not fit together. Every command that torchrun accepts is accepted: an option that
# torchrun ignores gets a warning, and options that cannot work together are an error.

NEEDS_PROBE = {option.name for option in OPTIONS if option.needs_probe}

# Settings of --rdzv-conf that torch reads as integers, and those that it does not convert.
_NUMBERS = {
    "static": {"timeout"},
    "c10d": (
        {"join_timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout"}
        | {"keep_alive_interval", "keep_alive_max_attempt", "read_timeout"}
    ),
}
_OTHERS = {"static": {"rank"}, "c10d": {"is_host", "store_type"}}
_CHOSEN_BY_STANDALONE = (
    "rdzv_backend",
    "rdzv_endpoint",
    "rdzv_id",
    "node_rank",
    "master_addr",
    "master_port",
)
_TRUTHS = ("1", "true", "t", "yes", "y", "0", "false", "f", "no", "n")


def refuse_contradictions(raw: Mapping[str, Any], typed: Collection[str]) -> None:
    """Refuse paceline's own options that contradict each other; ``raw`` has them as text."""
    if is_true(raw.get("check")) and is_true(raw.get("no_check")):
        raise contradiction(
            "--check", "--no-check", "one requests the roll call, the other leaves it out"
        )
    if is_true(raw.get("check_only")) and is_true(raw.get("no_check")):
        raise contradiction(
            "--check-only", "--no-check", "one requests the checks alone, the other leaves them out"
        )
    if is_true(raw.get("no_check")) and "roll_call_timeout" in typed:
        raise contradiction("--roll-call-timeout", "--no-check", "there is no roll call")
    if is_true(raw.get("no_probe")):
        needs_probe = NEEDS_PROBE & set(typed)
        if needs_probe:
            raise contradiction(
                long_form(min(needs_probe)), "--no-probe", "it needs the counters of the probe"
            )
    if "prove" in typed:
        _refuse_beside_prove(raw)
    has_both = "grace_s" in typed and "shutdown_timeout" in typed
    if has_both and raw["grace_s"] != raw["shutdown_timeout"]:
        raise contradiction("--grace-s", "--shutdown-timeout", "both set the same timeout")


def _refuse_beside_prove(raw: Mapping[str, Any]) -> None:
    if is_true(raw.get("check_only")):
        raise contradiction("--prove", "--check-only", "that does not start the script")
    if is_true(raw.get("no_python")) or raw.get("start_method") == "exec":
        other = "--no-python" if is_true(raw.get("no_python")) else "--start-method exec"
        raise contradiction("--prove", other, "the loss is seen by paceline's entry of a rank only")


def settle(options: Options, *, typed: Collection[str], requested: Collection[str]) -> Options:
    """Return the options that take effect, with a warning for each typed option that has none.

    Variables without effect are ignored silently: clusters export them for all users. Raises
    UsageError if options cannot work together.
    """
    fit = _Fit(options, typed)
    _settle_program(fit)
    for name in ("duplicate_stdout_filters", "duplicate_stderr_filters"):
        if options.tee == "0":
            fit.ignore(name, "it copies lines of teed streams only", fix="add --tee 3")
    if options.standalone:
        _settle_standalone(fit)
    elif options.rdzv_backend == "static":
        _settle_static(fit, requested)
    else:
        _settle_elastic(fit)
    if fit.options.rdzv_backend in _NUMBERS:
        _settle_settings(fit)
    if fit.options.one_node:
        fit.ignore("secret_file", "one node's launcher takes nothing from others")
    return replace(fit.options, warnings=tuple(fit.warnings))


class _Fit:
    """The options during the check, and the warnings so far."""

    def __init__(self, options: Options, typed: Collection[str]) -> None:
        self.options = options
        self.warnings: list[Finding] = [*options.starter_defaults.warnings]
        self._typed = typed

    def ignore(self, name: str, why: str, *, fix: str = "") -> None:
        """Reset an option to its default, with a warning if it was typed."""
        default = getattr(type(self.options), name)
        if getattr(self.options, name) == default:
            return
        self.options = replace(self.options, **{name: default})
        self.warn(name, why, fix=fix)

    def warn(self, name: str, why: str, *, fix: str = "") -> None:
        """Add a warning that an option has no effect, if it was typed."""
        if name in self._typed:
            self.warnings.append(
                _warning(
                    f"{long_form(name)} has no effect: {why}", fix or f"remove {long_form(name)}"
                )
            )


def _settle_program(fit: _Fit) -> None:
    if fit.options.run_path:
        for name in ("module", "no_python"):
            fit.ignore(name, "--run-path runs the script by its path")
    if fit.options.no_python and fit.options.module:
        raise contradiction("--no-python", "--module", "a module needs Python")


def _settle_standalone(fit: _Fit) -> None:
    if fit.options.min_nodes > 1:
        raise contradiction("--standalone", "--nnodes", "standalone means one node")
    if fit.options.max_nodes > 1:
        fit.warn("nnodes", "--standalone means one node")
        fit.options = replace(fit.options, nnodes=(1, 1))
    if fit.options.rdzv_backend == "c10d":  # the backend that standalone means
        fit.options = replace(fit.options, rdzv_backend="static")
    for name in _CHOSEN_BY_STANDALONE:
        fit.ignore(name, "--standalone chooses it")


def _settle_static(fit: _Fit, requested: Collection[str]) -> None:
    options = fit.options
    if options.min_nodes != options.max_nodes:
        most = options.max_nodes
        fit.warnings.append(
            _warning(
                f"--nnodes {options.min_nodes}:{most} means {most} nodes: a static rendezvous has"
                " no range",
                f"--nnodes {most}, or for a range --rdzv-backend c10d --rdzv-endpoint"
                f" HEAD:{DEFAULT_C10D_PORT}",
            )
        )
        fit.options = options = replace(options, nnodes=(most, most))
    if options.rdzv_endpoint:
        for name in ("master_addr", "master_port"):
            if not _agrees(options, name):
                fit.ignore(name, f"--rdzv-endpoint {options.rdzv_endpoint} says where nodes meet")
    elif options.one_node and options.master_port is None:
        fit.ignore(
            "node_rank",
            "there is one node",
            fix=f"--nnodes {options.node_rank + 1}, or remove --node-rank",
        )
    if fit.options.node_rank >= options.max_nodes:
        ways = f"--nnodes {options.node_rank + 1}, or --node-rank {options.max_nodes - 1}"
        raise invalid(
            "node_rank", str(options.node_rank), f"must be below --nnodes {options.max_nodes}", ways
        )
    if fit.options.node_rank and not options.rdzv_endpoint and "master_addr" not in requested:
        what = (
            f"--node-rank {options.node_rank} without --master-addr: this node looks for the head"
            " on its own host"
        )
        fit.warnings.append(_warning(what, "--master-addr HEAD"))


def _settle_elastic(fit: _Fit) -> None:
    options = fit.options
    near = closest(options.rdzv_backend, RDZV_BACKENDS)
    if near and options.rdzv_backend not in RDZV_BACKENDS:  # any other name may be a plug-in's
        raise invalid(
            "rdzv_backend", options.rdzv_backend, "is not known", f"--rdzv-backend {near}"
        )
    if not options.rdzv_endpoint and not options.one_node:
        missing = _without_endpoint(options)
        if options.min_nodes > 1 or options.rdzv_backend != "c10d":
            raise UsageError(missing)
        fit.warnings.append(replace(missing, severity="warning"))
        fit.options = replace(options, rdzv_endpoint=f"localhost:{DEFAULT_C10D_PORT}")
    for name in ("node_rank", "master_addr", "master_port"):
        if not _agrees(options, name):
            fit.warn(name, f"--rdzv-backend {options.rdzv_backend} does not use it")


def _without_endpoint(options: Options) -> Finding:
    head = options.master_addr if options.head_named else "HOST_OF_THE_FIRST_NODE"
    return Finding(
        "c10d-without-rdzv-endpoint",
        f"--rdzv-backend {options.rdzv_backend} needs --rdzv-endpoint: without it each node would"
        " wait for itself",
        where="command line",
        fix=(
            f"--rdzv-endpoint {head}:{options.master_port or DEFAULT_C10D_PORT}, the same on all"
            " nodes"
        ),
    )


def _agrees(options: Options, name: str) -> bool:
    """Return whether an option that is not used agrees with the value that is used."""
    host, _, port = options.rdzv_endpoint.rpartition(":")
    if name == "node_rank":
        return options.node_rank == 0
    if name == "master_addr":
        return options.master_addr == host
    return str(options.master_port) == port


def _settle_settings(fit: _Fit) -> None:
    """Check the rendezvous settings that torch reads, and drop those that it does not read."""
    options = fit.options
    is_local = options.one_node and not options.rdzv_endpoint and options.master_port is None
    backend = "c10d" if is_local else options.rdzv_backend
    settings = []
    for key, value in options.rdzv_conf:
        _check_setting(key, value, backend)
        # the time limit of the roll call, with either backend
        is_ours = key == "join_timeout" and value.isdecimal()
        if is_ours or key in _NUMBERS[backend] | _OTHERS[backend]:
            settings.append((key, value))
        elif not is_local:
            fit.warnings.append(_unread(key, value, backend))
    fit.options = replace(options, rdzv_conf=tuple(settings))


def _check_setting(key: str, value: str, backend: str) -> None:
    """Refuse a value that torch cannot convert."""
    setting = f"{key}={value}"
    if key in _NUMBERS[backend] and not re.fullmatch("0*[1-9][0-9]*", value):
        rule = f"takes a whole number from 1 for {key}"
        raise invalid("rdzv_conf", setting, rule, f"--rdzv-conf {key}=600")
    if key == "is_host" and backend == "c10d" and value.lower() not in _TRUTHS:
        raise invalid("rdzv_conf", setting, f"takes 1 or 0 for {key}", "--rdzv-conf is_host=1")


def _unread(key: str, value: str, backend: str) -> Finding:
    names = _NUMBERS[backend] | _OTHERS[backend]
    bare_key, bare_value = key.strip("'\""), value.strip("'\"")
    near = bare_key if bare_key in names else closest(bare_key, sorted(names))
    if bare_key == "timeout":
        near = "join_timeout"
    what = f"--rdzv-conf {key}={value} has no effect: {backend} has no setting {key}"
    return _warning(what, f"--rdzv-conf {near}={bare_value}" if near else f"remove {key}={value}")


def _warning(what: str, fix: str) -> Finding:
    return Finding("option-contradicted", what, where="command line", fix=fix, severity="warning")


def parse(
    script: str,
    script_args: tuple[str, ...],
    *,
    typed: Mapping[str, Any],
    inherited: Mapping[str, str],
    starter_defaults: StarterDefaults = StarterDefaults(),  # noqa: B008  # frozen
    preferred: Preferences | None = None,
) -> Options:
    """Parse and check typed options and torchrun's ``PET_*`` variables; the command line wins.

    ``inherited`` comes from the environment, ``starter_defaults`` from Slurm, mpirun or a pod
    (the other two win). Raises UsageError if a value is wrong, or options cannot work together.
    """
    decided = preferences.apply(preferred or {}, typed=typed)
    raw: dict[str, Any] = dict(starter_defaults.values)
    torchruns = [name for name in inherited if name in OPTION and not OPTION[name].ours]
    raw |= {name: inherited[name] for name in torchruns}
    raw |= {name: value for name, (value, _) in decided.items()}
    raw.update(typed)
    raw = {name: _trimmed(name, value) for name, value in raw.items()}
    refuse_contradictions(raw, typed)
    options = Options(
        script,
        script_args,
        **_values(raw),
        starter_defaults=starter_defaults,
        preferred=tuple((name, source) for name, (_, source) in decided.items()),
        typed=tuple((name, "" if value is True else str(value)) for name, value in typed.items()),
    )
    return settle(options, typed=typed, requested=raw)


def _trimmed(name: str, value: Any) -> Any:
    """Return a value without blanks around it, unless it is a text: int() skips them too."""
    if not isinstance(value, str) or (name in OPTION and OPTION[name].is_text):
        return value
    return value.strip()


def _values(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the fields of ``Options`` for which there is a text."""
    values = {}
    # other names last, so that they win
    for option in sorted(OPTIONS, key=lambda option: bool(option.same_as)):
        text = raw.get(option.name)
        if text is None or option.parse is None:
            continue
        value = option.parse(option, text if option.flag else str(text))
        if value is not None:
            values[option.same_as or option.name] = value
    return values
