"""Check which GPUs of a machine are visible to CUDA in this process. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paceline.diagnose.doctor.checks.asked import named, visible_gpus
from paceline.diagnose.doctor.facts import Facts
from paceline.diagnose.doctor.render import count
from paceline.errors import Finding
from paceline.machine.gpus import entries
from paceline.text.wording import few


def judge_visibility(facts: Facts) -> Iterator[Finding]:
    """Yield the findings about GPUs that are present but not visible."""
    if not facts.gpus:
        if facts.driver.gpus_on_bus and not re.search("mismatch|no answer", facts.driver.problem):
            yield _unreachable(facts)
        return
    if len(facts.gpus) < facts.driver.gpus_on_bus and not (
        facts.host.container or facts.host.slurm_job
    ):
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
            "lspci -nnk -d 10de: tells the driver of each; sudo dmesg | grep -i nvrm tells of"
            " failures"
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
            else "nvidia-smi tells why; load or install the driver"
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
    listed, shown = entries(setting), visible_gpus(facts)
    wrong = next((entry for entry in listed if named(entry, facts.gpus) is None), "")
    total, job = len(facts.gpus), facts.host.slurm_job
    repeated = next((entry for entry in listed if listed.count(entry) > 1), "")
    if repeated and not shown:
        yield Finding(
            "gpus-not-visible",
            f"CUDA_VISIBLE_DEVICES={setting} names {repeated} twice: CUDA shows none of"
            f" {count(total, 'GPU')}",
            where="CUDA_VISIBLE_DEVICES",
            why="CUDA shows no GPU where an entry is repeated",
            fix="unset CUDA_VISIBLE_DEVICES",
            severity="warning",
        )
    elif not shown or (wrong and not wrong.startswith("-")):
        what = (
            f"CUDA_VISIBLE_DEVICES={setting} names no GPU"
            if not shown
            else f"there is no GPU {wrong}"
        )
        yield Finding(
            "gpus-not-visible",
            f"{what}: CUDA shows {len(shown) or 'none'} of {count(total, 'GPU')}",
            where="CUDA_VISIBLE_DEVICES",
            evidence=(f"CUDA_VISIBLE_DEVICES={setting}", f"GPUs here: 0 to {total - 1}"),
            why="CUDA stops at the first entry that names no GPU",
            fix=(
                "leave it to Slurm, which hands out the GPUs: #SBATCH --gpus-per-node=1, if the job"
                " needs one"
                if job
                else "unset CUDA_VISIBLE_DEVICES"
            ),
            severity="hint" if job and not shown else "warning",  # a job may not need any
        )
    elif len(shown) < total and not job:
        yield Finding(
            "gpus-not-visible",
            f"CUDA_VISIBLE_DEVICES={setting} hides {total - len(shown)} of {count(total, 'GPU')}",
            where="CUDA_VISIBLE_DEVICES",
            fix="unset CUDA_VISIBLE_DEVICES, if the others may be used too",
            severity="hint",
        )
