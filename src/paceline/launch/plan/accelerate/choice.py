"""Decide whether a run uses a configuration of accelerate, and describe it. Pure."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.errors import Finding
from paceline.launch.plan.accelerate.settings import (
    ANOTHER_LAUNCHER,
    DEEPSPEED,
    HEAD,
    AccelerateSettings,
)
from paceline.launch.plan.options import RENDEZVOUS_OPTIONS
from paceline.text.syntax import tree_of

# The command line and the machine decide the layout of a run and its devices, unless a
# configuration is named.
_OF_THE_MACHINE = {"ACCELERATE_USE_CPU", "KMP_AFFINITY", "KMP_BLOCKTIME", "CUDA_VISIBLE_DEVICES"}
_OF_THE_MACHINE |= {"OMP_NUM_THREADS"}
_ONE_NUMBER = {"ACCELERATE_USE_MEGATRON_LM", "ACCELERATE_USE_PARALLELISM_CONFIG"}
# Options of the rendezvous: one that is typed, or taken from Slurm, replaces the configuration's
# whole layout.
_LAYOUT = frozenset({*RENDEZVOUS_OPTIONS, "standalone"})


@dataclass(frozen=True)
class AccelerateChoice:
    """The part of an accelerate configuration that a run uses."""

    environment: Mapping[str, str] = field(default_factory=dict)  # variables to set for all ranks
    summary: str = ""  # text for the plan line; empty if nothing is used
    warnings: tuple[Finding, ...] = ()  # about requested settings that the run does not have


def named(settings: AccelerateSettings, path: str, environ: Mapping[str, str]) -> AccelerateChoice:
    """Return the choice for a named configuration.

    As in accelerate, it takes precedence over the environment.
    """
    told = settings.environment
    replaced = [name for name in told if environ.get(name, told[name]) != told[name]]
    words = ", ".join(settings.asks) or "nothing but defaults"
    replaces = f"; replaces {', '.join(replaced)}" if replaced else ""
    summary = f"accelerate: {words} ({path}{replaces})"
    return AccelerateChoice(told, summary)


def by_default(
    settings: AccelerateSettings,
    path: str,
    environ: Mapping[str, str],
    *,
    num_gpus: int,
    has_deepspeed: bool,
) -> AccelerateChoice:
    """Return the choice for accelerate's default configuration, for scripts that import accelerate.

    The run uses nothing of it if the environment already configures the training, or if it would
    make an otherwise working run fail. A configuration for another kind of machine is not
    mentioned.
    """
    if not settings.asks or "ACCELERATE_MIXED_PRECISION" in environ:
        return AccelerateChoice()
    told = settings.environment
    is_sharded = {"ACCELERATE_USE_FSDP", DEEPSPEED} & set(told)
    for_gpus = is_sharded or told["ACCELERATE_MIXED_PRECISION"] in ("fp16", "fp8")
    for_cpus = told.get("ACCELERATE_USE_CPU") == "True"
    is_for_others = for_cpus if num_gpus else for_gpus
    if is_for_others:
        return AccelerateChoice()
    obstacle = _obstacle(settings, environ, has_deepspeed=has_deepspeed)
    if obstacle:
        return AccelerateChoice(warnings=(_not_set(settings, path, obstacle),))
    environment = {name: told[name] for name in told if name not in _OF_THE_MACHINE}
    summary = f"accelerate: {', '.join(settings.asks)} ({path}; not with --accelerate-config none)"
    return AccelerateChoice(environment, summary)


def unusable(refusal: Finding, path: str) -> AccelerateChoice:
    """Return the choice where accelerate's default configuration cannot be used: a warning."""
    if refusal.fix == ANOTHER_LAUNCHER:
        return AccelerateChoice()  # for another kind of machine
    warning = Finding(
        "launcher-config-ignored",
        "the script imports accelerate, whose default configuration cannot be used; the ranks do"
        " not get its settings",
        where=path,
        evidence=(refusal.what,),
        why="accelerate launch would not start with it either",
        fix="accelerate config writes another one; --accelerate-config none if it is not meant",
        severity="warning",
    )
    return AccelerateChoice(warnings=(warning,))


def _obstacle(
    settings: AccelerateSettings, environ: Mapping[str, str], *, has_deepspeed: bool
) -> str:
    by_hand = sorted(name for name in environ if name.startswith("ACCELERATE_USE_"))
    if by_hand:
        return f"{', '.join(by_hand)} is set, so the environment decides"
    if DEEPSPEED in settings.environment and not has_deepspeed:
        return "DeepSpeed is not installed here"
    if _ONE_NUMBER & set(settings.environment):
        return "it fits one number of ranks only"
    return ""


def _not_set(settings: AccelerateSettings, path: str, reason: str) -> Finding:
    return Finding(
        "launcher-config-ignored",
        "the script imports accelerate, whose default configuration asks for"
        f" {', '.join(settings.asks)}; the ranks do not get these settings",
        where=path,
        evidence=(reason,),
        why="under accelerate launch the script would train in another way",
        fix=(
            f"paceline run --accelerate-config {path} ..., or --accelerate-config none if it is not"
            " meant"
        ),
        severity="warning",
    )


def layout(settings: AccelerateSettings, *, decided: Mapping[str, object]) -> dict[str, str]:
    """Return the options of a named configuration that nothing else has decided.

    ``decided`` are those typed, inherited from torchrun's variables, or taken from Slurm.
    """
    passed_over = {*decided, *(_LAYOUT if _LAYOUT & set(decided) else ())}
    options = settings.options.items()
    return {name: value for name, value in options if name not in passed_over and value != HEAD}


def imports_accelerate(source: str) -> bool:
    """Return whether a script's own text imports accelerate; False if it cannot be parsed."""
    tree = tree_of(source)
    modules: list[str] = []
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules.append(node.module or "")
    return any(module.partition(".")[0] == "accelerate" for module in modules)
