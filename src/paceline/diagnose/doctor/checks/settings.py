"""Check the settings of NCCL, torch, gloo and libfabric: are they read, what do they cost? Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.diagnose.doctor.checks.asked import place, visible_gpus
from paceline.diagnose.doctor.facts import Facts
from paceline.diagnose.doctor.render import size
from paceline.errors import Finding

_BUFFER = 4 << 20  # NCCL's default for NCCL_BUFFSIZE


def judge_settings(facts: Facts) -> Iterator[Finding]:
    """Yield the findings about settings."""
    from paceline.diagnose import variables  # read its lists only if there is something to look up

    settings = facts.settings
    if "rocm" in facts.software.torch:  # AMD's library knows more names than NCCL
        settings = {name: value for name, value in settings.items() if not name.startswith("NCCL_")}
    if not settings:
        return
    installed = {"nccl": facts.software.nccl, "torch": facts.software.torch}
    versions = {name: version for name, version in installed.items() if version}
    findings = variables.judge_settings(settings, where=facts.settings_where, versions=versions)
    yield from findings
    yield from _forced(facts, findings)


def _forced(facts: Facts, findings: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the settings that limit NCCL's choice, unless another finding already covers them."""
    network = facts.settings.get("NCCL_NET", "").lower()
    # Plug-ins require such settings.
    plugin = facts.settings.get("NCCL_TUNER_PLUGIN") or network not in ("", "ib", "socket")
    if not facts.gpus or plugin:
        return
    covered = " ".join(finding.what for finding in findings)
    forced = [(name, price) for name, price in _prices(facts) if f"{name}=" not in covered]
    if not forced:
        return
    names = [name for name, _ in forced]
    yield Finding(
        "tuning-forced",
        f"{' and '.join(f'{name}={facts.settings[name]}' for name in names)}"
        f" {'take' if len(names) > 1 else 'takes'} a choice from NCCL that it makes for every size"
        " of message",
        where=", ".join(place(name, facts) for name in names),
        evidence=tuple(f"{name}={facts.settings[name]}: {price}" for name, price in forced),
        why="what was right for one machine and version slows another down",
        fix=f"measure with and without, and keep the faster: unset {' '.join(names)}",
        severity="hint",
    )


def _prices(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield each setting that limits NCCL, and its cost."""
    settings = facts.settings
    if settings.get("NCCL_ALGO"):
        switched = any(
            link.remote == "switch" for gpu in visible_gpus(facts) for link in gpu.nvlinks
        )
        more = "; on NVLink switches NVLS may be faster" if switched else ""
        yield (
            "NCCL_ALGO",
            f"rings are slow for small messages on many nodes, trees for large ones on few{more}",
        )
    if settings.get("NCCL_PROTO"):
        yield "NCCL_PROTO", "Simple is slow for small messages, LL for large ones"
    text = settings.get("NCCL_BUFFSIZE", "")
    if text.isdecimal() and int(text) < _BUFFER:
        yield (
            "NCCL_BUFFSIZE",
            f"NCCL's own is {size(_BUFFER)}; smaller buffers wait more often for each other",
        )
    elif text.isdecimal() and int(text) > _BUFFER:
        yield (
            "NCCL_BUFFSIZE",
            f"NCCL's own is {size(_BUFFER)}; each channel to each peer takes more GPU memory",
        )
