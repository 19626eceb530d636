"""Decide whether a run uses a configuration of accelerate, and describe it. Pure."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.errors import Finding
from paceline.launch.plan.accelerate.settings import HEAD, AccelerateSettings
from paceline.launch.plan.options import RENDEZVOUS_OPTIONS
from paceline.text.syntax import tree_of

# The command line and the machine decide the layout of a run and its devices, unless a
# configuration is named.
_OF_THE_MACHINE = (
    "ACCELERATE_USE_CPU",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
)
# Options of the rendezvous: one that is typed, or taken from Slurm, replaces the configuration's
# whole layout.
_LAYOUT = frozenset({*RENDEZVOUS_OPTIONS, "standalone"})


@dataclass(frozen=True)
class AccelerateChoice:
    """The part of an accelerate configuration that a run uses."""

    environment: Mapping[str, str] = field(default_factory=dict)  # variables to set for all ranks
    summary: str = ""  # text for the plan line; empty if nothing is used
    # findings about requested settings that the run does not have
    warnings: tuple[Finding, ...] = ()
    working_folder: bool = False  # whether ranks find modules in the working folder


def named(settings: AccelerateSettings, path: str, environ: Mapping[str, str]) -> AccelerateChoice:
    """Return the choice for a named configuration.

    As in accelerate, it takes precedence over the environment.
    """
    replaced = [
        name for name, value in settings.environment.items() if environ.get(name, value) != value
    ]
    words = ", ".join(settings.asks) or "nothing but defaults"
    replaces = f"; replaces {', '.join(replaced)}" if replaced else ""
    summary = f"accelerate: {words} ({path}{replaces})"
    return AccelerateChoice(settings.environment, summary, working_folder=settings.working_folder)


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
    for_gpus = "gpu" in settings.needs
    for_cpus = settings.environment.get("ACCELERATE_USE_CPU") == "True"
    lacks_gpus = for_gpus and not num_gpus
    ignores_gpus = for_cpus and num_gpus > 0
    if lacks_gpus or ignores_gpus:
        return AccelerateChoice()
    by_hand = sorted(name for name in environ if name.startswith("ACCELERATE_USE_"))
    if by_hand:
        return AccelerateChoice(
            warnings=_not_set(
                settings, path, f"{', '.join(by_hand)} is set, so the environment decides"
            )
        )
    obstacle = _obstacle(settings, has_deepspeed=has_deepspeed)
    if obstacle:
        return AccelerateChoice(warnings=_not_set(settings, path, obstacle))
    environment = {
        name: value for name, value in settings.environment.items() if name not in _OF_THE_MACHINE
    }
    summary = f"accelerate: {', '.join(settings.asks)} ({path}; not with --accelerate-config none)"
    return AccelerateChoice(environment, summary, working_folder=settings.working_folder)


def _obstacle(settings: AccelerateSettings, *, has_deepspeed: bool) -> str:
    if "deepspeed" in settings.needs and not has_deepspeed:
        return "DeepSpeed is not installed here"
    if {"ACCELERATE_USE_MEGATRON_LM", "ACCELERATE_USE_PARALLELISM_CONFIG"} & set(
        settings.environment
    ):
        return "it fits one number of ranks only"
    return ""


def _not_set(settings: AccelerateSettings, path: str, reason: str) -> tuple[Finding]:
    warning = Finding(
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
    return (warning,)


def layout(settings: AccelerateSettings, *, decided: Mapping[str, object]) -> dict[str, str]:
    """Return the options of a named configuration that nothing else has decided.

    ``decided`` are those typed, inherited from torchrun's variables, or taken from Slurm.
    """
    passed_over = set(_LAYOUT if _LAYOUT & set(decided) else ())
    passed_over |= {name for name, value in settings.options.items() if value == HEAD}
    return {
        name: value
        for name, value in settings.options.items()
        if name not in decided and name not in passed_over
    }


def imports_accelerate(source: str) -> bool:
    """Return whether a script's own text imports accelerate; False if it cannot be parsed."""
    tree = tree_of(source)
    return tree is not None and any(map(_of_accelerate, ast.walk(tree)))


def _of_accelerate(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] == "accelerate" for alias in node.names)
    return (
        isinstance(node, ast.ImportFrom)
        and not node.level
        and (node.module or "").partition(".")[0] == "accelerate"
    )
