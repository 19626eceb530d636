"""Check which GPUs of a machine are visible to CUDA in this process. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paceline.diagnose.doctor.checks.asked import named, visible_gpus
from paceline.diagnose.doctor.facts import Facts
from paceline.errors import Finding
from paceline.machine.gpus import entries
from paceline.text.wording import count, few


def judge_visibility(facts: Facts) -> Iterator[Finding]:
    """Yield the findings about GPUs that are present but not visible."""
    on_bus = facts.driver.gpus_on_bus
    if not facts.gpus:
        # Another finding is about these problems.
        explained = re.search("mismatch|no answer", facts.driver.problem)
        if on_bus and not explained:
            yield _unreachable(facts)
        return
    # A container and a job see the PCI bus of the whole node, and are given some of its GPUs.
    restricted = facts.host.container or facts.host.slurm_job
    if len(facts.gpus) < on_bus and not restricted:
        yield _missing(facts)
    for gpu in facts.gpus:
        if gpu.mig and not gpu.mig_slices:
            yield Finding(
                "gpus-not-visible",
                f"GPU {gpu.index} is in MIG mode and has no slice: CUDA does not show it",
                where=f"GPU {gpu.index}",
                fix=(
                    f"sudo nvidia-smi -i {gpu.index} -mig 0, or make slices: sudo nvidia-smi mig"
                    " -cgi PROFILE -C"
                ),
                severity="warning",
            )
    if facts.visible_devices is not None:
        yield from _hidden(facts, facts.visible_devices)


def _missing(facts: Facts) -> Finding:
    return Finding(
        "gpus-not-visible",
        f"the driver serves {len(facts.gpus)} of {facts.driver.gpus_on_bus} NVIDIA GPUs on the"
        " PCI bus",
        where=facts.host.name,
        evidence=(f"served: {few([gpu.bus_id for gpu in facts.gpus], 8)}",),
        why="the others have failed at the start, or belong to another driver (vfio-pci, nouveau)",
        fix=(
            "lspci -nnk -d 10de: shows the driver of each; sudo dmesg | grep -i nvrm shows failures"
        ),
        severity="warning",
    )


def _unreachable(facts: Facts) -> Finding:
    container = facts.host.container
    how = {
        "apptainer": "apptainer exec --nv ...",
        "kubernetes": "ask for them in the pod: resources: limits: nvidia.com/gpu: 1",
        "podman": "podman run --device nvidia.com/gpu=all ...",
    }.get(
        container,
        (
            "docker run --gpus all ..."
            if container
            else "nvidia-smi shows why; load or install the driver"
        ),
    )
    job = facts.host.slurm_job
    return Finding(
        "gpus-not-visible",
        f"{count(facts.driver.gpus_on_bus, 'NVIDIA GPU')} on the PCI bus, and none that this"
        " process can ask",
        where=f"container ({container})" if container else facts.host.name,
        evidence=(f"NVML: {facts.driver.problem}",) if facts.driver.problem else (),
        why="ranks would run on CPUs" if not job else "this Slurm job may not have asked for GPUs",
        fix="#SBATCH --gpus-per-node=1, if the job needs GPUs" if job and not container else how,
        severity="hint" if job else "warning",
    )


def _hidden(facts: Facts, setting: str) -> Iterator[Finding]:
    """Yield the finding about GPUs that ``CUDA_VISIBLE_DEVICES`` hides."""
    listed = entries(setting)
    num_visible, total = len(visible_gpus(facts)), len(facts.gpus)
    repeated = next((entry for entry in listed if listed.count(entry) > 1), "")
    unknown = next((entry for entry in listed if named(entry, facts.gpus) is None), "")
    if repeated and not num_visible:
        yield _repeated(setting, repeated, total)
    # ``0,1,-1,2``: a negative number is the usual way to end the list on purpose.
    elif not num_visible or (unknown and not unknown.startswith("-")):
        yield _unknown(facts, setting, unknown, num_visible)
    elif num_visible < total and not facts.host.slurm_job:
        yield Finding(
            "gpus-not-visible",
            f"CUDA_VISIBLE_DEVICES={setting} hides {total - num_visible} of {count(total, 'GPU')}",
            where="CUDA_VISIBLE_DEVICES",
            fix="unset CUDA_VISIBLE_DEVICES, if the others may be used too",
            severity="hint",
        )


def _repeated(setting: str, entry: str, total: int) -> Finding:
    return Finding(
        "gpus-not-visible",
        f"CUDA_VISIBLE_DEVICES={setting} names {entry} twice: CUDA shows none of"
        f" {count(total, 'GPU')}",
        where="CUDA_VISIBLE_DEVICES",
        why="CUDA shows no GPU where an entry is repeated",
        fix="unset CUDA_VISIBLE_DEVICES",
        severity="warning",
    )


def _unknown(facts: Facts, setting: str, entry: str, num_visible: int) -> Finding:
    """Return the finding about an entry that names none of the GPUs."""
    job, total = facts.host.slurm_job, len(facts.gpus)
    what = (
        f"there is no GPU {entry}"
        if num_visible
        else f"CUDA_VISIBLE_DEVICES={setting} names no GPU"
    )
    return Finding(
        "gpus-not-visible",
        f"{what}: CUDA shows {num_visible or 'none'} of {count(total, 'GPU')}",
        where="CUDA_VISIBLE_DEVICES",
        evidence=(f"CUDA_VISIBLE_DEVICES={setting}", f"GPUs here: 0 to {total - 1}"),
        why="CUDA stops at the first entry that names no GPU",
        fix=(
            "leave it to Slurm, which assigns the GPUs: #SBATCH --gpus-per-node=1, if the job needs"
            " one"
            if job
            else "unset CUDA_VISIBLE_DEVICES"
        ),
        severity="hint" if job and not num_visible else "warning",  # a job may not need any
    )
