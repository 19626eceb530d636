"""Check software, its settings and leftovers: driver against torch, earlier runs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.diagnose.doctor.checks.asked import gpus_in_words, place, version, visible_gpus
from paceline.diagnose.doctor.facts import Facts, Leftover
from paceline.diagnose.doctor.render import size
from paceline.errors import Finding
from paceline.machine import python_fork
from paceline.text.wording import is_or_are

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


_TURING, _BLACKWELL = (7, 5), (10, 0)  # compute capabilities
_WITHOUT_OLD, _WITH_BLACKWELL = (13, 0), (12, 8)  # versions of CUDA


def judge_software(facts: Facts) -> Iterator[Finding]:
    """Yield the findings about software and leftovers."""
    yield from _driver(facts)
    yield from _architecture(facts)
    yield from _build(facts)
    yield from _python(facts)
    yield from _leftovers(facts)


def _driver(facts: Facts) -> Iterator[Finding]:
    driver = facts.driver
    required = version(facts.software.torch_cuda)
    supported = version(driver.cuda)
    if "mismatch" in driver.problem.lower():
        yield Finding(
            "driver-mismatch",
            "the NVIDIA driver that the kernel runs and its library are of different versions",
            where=facts.host.name,
            evidence=(f"NVML: {driver.problem}",),
            why="no GPU can be used; an update has replaced the library under a running kernel",
            fix="reboot, or load the new kernel module; in a container: start it again",
        )
    # Within a major version CUDA runs on older drivers too (minor version compatibility).
    elif facts.gpus and required and supported and supported[0] < required[0]:
        yield Finding(
            "driver-mismatch",
            f"torch is built for CUDA {facts.software.torch_cuda}, and the driver {driver.version}"
            f" supports CUDA {driver.cuda} at most",
            where=facts.host.name,
            why="torch finds no GPU: torch.cuda.is_available() is False",
            fix=f"a newer driver, or a torch for CUDA {supported[0]}: pytorch.org/get-started",
        )


def _python(facts: Facts) -> Iterator[Finding]:
    """Yield a hint about a Python whose forks may deadlock.

    A distribution may have fixed its Python without changing the version.
    """
    installed = version(facts.software.python)
    if len(installed) < 3 or not python_fork.has_bug(installed):
        return
    yield Finding(
        "python-fork-bug",
        f"Python {facts.software.python} can deadlock in the child of a fork ({python_fork.ISSUE})",
        where=facts.host.name,
        why=(
            "a DataLoader that forks its workers for every epoch hangs at random: about one fork in"
            " 1000 where a rank has other threads"
        ),
        fix=(
            f"Python {python_fork.newer(installed)}; until then DataLoader(...,"
            " persistent_workers=True)"
        ),
        severity="hint",
    )


def _architecture(facts: Facts) -> Iterator[Finding]:
    """Yield the findings about GPUs for which torch's CUDA has no code.

    CUDA 13 dropped everything older than Turing.
    """
    cuda = version(facts.software.torch_cuda)
    gpus = [gpu for gpu in visible_gpus(facts) if cuda and gpu.capability]
    old = [gpu for gpu in gpus if cuda >= _WITHOUT_OLD and version(gpu.capability) < _TURING]
    new = [gpu for gpu in gpus if cuda < _WITH_BLACKWELL and version(gpu.capability) >= _BLACKWELL]
    for gpu in (old or new)[:1]:
        yield Finding(
            "library-version-mismatch",
            f"torch is built for CUDA {facts.software.torch_cuda}, which makes no code for"
            f" {gpu.name} (compute capability {gpu.capability})",
            where=gpus_in_words(old or new),
            why="the first kernel fails: no kernel image is available for execution on the device",
            fix=f"a torch for CUDA {'12.6' if old else '12.8 or newer'}: pytorch.org/get-started",
            severity="warning",
        )


def _build(facts: Facts) -> Iterator[Finding]:
    if facts.gpus and facts.software.torch and not facts.software.torch_cuda:
        yield Finding(
            "nccl-not-built-in",
            f"torch {facts.software.torch} is built without CUDA and NCCL, and there are"
            f" {len(facts.gpus)} GPUs here",
            where="torch",
            why="ranks run on CPUs, and backend nccl is refused",
            fix="install a torch with CUDA: pytorch.org/get-started",
            severity="warning",
        )


def _leftovers(facts: Facts) -> Iterator[Finding]:
    if not facts.leftovers:
        return
    pids = [str(process.pid) for process in facts.leftovers]
    processes = "1 process" if len(pids) == 1 else f"{len(pids)} processes"
    yield Finding(
        "orphan-processes",
        f"{processes} of an earlier run {is_or_are(pids)} still there without a"
        f" launcher, holding {' and '.join(_holdings(facts))}",
        where=f"pid {', '.join(pids[:8])}",
        evidence=tuple(_words(process) for process in facts.leftovers[:8]),
        why="they keep memory and ports from the next run",
        fix=f"look at them first: ps -fp {','.join(pids)}; then kill {' '.join(pids)}",
        severity="warning",
    )


def _holdings(facts: Facts) -> list[str]:
    """Return the GPU memory and the ports that leftovers hold, or else their memory, as text."""
    pids = {process.pid for process in facts.leftovers}
    gpu_processes = [process for gpu in facts.gpus for process in gpu.processes]
    held_bytes = sum(process.memory_bytes or 0 for process in gpu_processes if process.pid in pids)
    ports = sorted({port for process in facts.leftovers for port in process.ports})
    holdings = []
    if held_bytes:
        holdings.append(f"{size(held_bytes)} of GPU memory")
    if ports:
        holdings.append(f"port {', '.join(map(str, ports[:4]))}")
    if holdings:
        return holdings
    return [f"{size(sum(process.memory_bytes for process in facts.leftovers))} of memory"]


def _words(process: Leftover) -> str:
    parts = [
        f"rank {process.rank}" if process.rank else "",
        f"of run {process.run}" if process.run else "",
        size(process.memory_bytes) if process.memory_bytes else "",
        f"started {_ago(process.age_s)} ago" if process.age_s else "",
    ]
    properties = ", ".join(filter(None, parts))
    return f"pid {process.pid} ({process.command or '?'}): {properties or 'no more is known'}"


def _ago(age_s: int) -> str:
    if age_s < 120:
        return f"{age_s} s"
    if age_s < 7200:
        return f"{age_s // 60} min"
    if age_s < 172_800:
        return f"{age_s // 3600} h"
    return f"{age_s // 86_400} d"
