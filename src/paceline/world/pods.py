"""Read what Kubernetes operators say to the pods of a training run. Pure.

- Kubeflow's Trainer (TrainJob) sets torchrun's ``PET_*`` variables.
- Kubeflow's training operator (PyTorchJob) sets ``RANK`` and ``WORLD_SIZE``, which count pods and
  not ranks, and from 1.7 on ``PET_*`` too.
- JobSet and Jobs set ``JOB_COMPLETION_INDEX`` only; the number of pods is not in the environment.

Sources: kubeflow/trainer, pkg/runtime/framework/plugins/torch/torch.go; kubeflow/training-operator
1.5 and 1.9, pkg/controller.v1/pytorch/envvar.go and master.go; kubernetes-sigs/jobset, examples.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from paceline import env
from paceline.errors import Finding, UsageError
from paceline.world import torchrun
from paceline.world.world import DEFAULT_PORT, World, whole


@dataclass(frozen=True)
class Pod:
    """A pod among those of one training."""

    index: int | None  # index of this pod; None if nothing says it, as with an elastic PyTorchJob
    count: int  # number of pods; 0 if nothing says it
    source: str  # the variables that say it, as a phrase
    master_addr: str = ""  # address of the first pod; empty if nothing says it
    master_port: int = 0  # port of the store there; 0 if nothing says it
    # ranks that each pod was to start, as ``PET_NPROC_PER_NODE`` says; empty without it
    ranks: str = ""

    @property
    def name(self) -> str:
        """The pod as messages name it: ``pod 1 of 2``."""
        if self.index is None:
            return "a pod"
        return f"pod {self.index} of {self.count}" if self.count else f"pod {self.index}"

    def host_names(self, num_nodes: int) -> list[str]:
        """Return the host name of each pod, in order; empty if they cannot be derived.

        The first pod of a PyTorchJob is ``NAME-master-0``, the others are ``NAME-worker-0`` and so
        on. Pods of TrainJobs and JobSets are numbered at the end of their host names.
        """
        first = self.master_addr.partition(".")[0]
        stem = re.fullmatch(r"(.*\D)0", first)
        if stem is None:
            return []
        if first.endswith("-master-0"):
            workers = first.removesuffix("-master-0") + "-worker-"
            return [first, *(f"{workers}{number}" for number in range(num_nodes - 1))]
        return [f"{stem[1]}{number}" for number in range(num_nodes)]


def is_pod(environ: Mapping[str, str]) -> bool:
    """Return whether this process is in a pod of Kubernetes."""
    return bool(environ.get(env.KUBERNETES))


def counts_pods(environ: Mapping[str, str]) -> bool:
    """Return whether ``RANK`` is a pod's index, which the training operator sets, not a rank."""
    is_ranks = env.LOCAL_RANK in environ or torchrun.is_started_rank(environ)
    return is_pod(environ) and env.RANK in environ and not is_ranks


def read_pod(environ: Mapping[str, str]) -> Pod | None:
    """Return this pod; None outside Kubernetes, in a rank, and if nothing says which pod it is.

    Raises UsageError if a variable is not a number, or the variables do not fit each other.
    """
    if not is_pod(environ) or torchrun.is_started_rank(environ):
        return None
    master = environ.get(env.PET_MASTER_ADDR) or environ.get(env.MASTER_ADDR, "")
    port = next((n for n in (env.PET_MASTER_PORT, env.MASTER_PORT) if environ.get(n)), "")
    index, count, source = _place(environ)
    if not source:
        return None
    pod = Pod(
        index,
        count,
        source,
        master_addr=master,
        master_port=whole(environ, port) if port else 0,
        ranks=environ.get(env.PET_NPROC, ""),
    )
    if index is not None and count and index >= count:
        raise UsageError.of(
            "rank-env-missing",
            f"{source} do not fit each other: index {index} of {count}",
            where="environment",
            fix="leave these variables to the operator, which sets them for every pod",
        )
    return pod


def _place(environ: Mapping[str, str]) -> tuple[int | None, int, str]:
    """Return the index of this pod, the number of pods, and the variables that say so."""
    nnodes = environ.get(env.PET_NNODES, "").strip()
    if nnodes and not nnodes.isdecimal():  # elastic: a range, whose members torch numbers
        return None, 0, env.PET_NNODES
    index_name = _index_variable(environ)
    if nnodes and not index_name:
        return None, whole(environ, env.PET_NNODES), env.PET_NNODES
    if nnodes:
        names = f"{env.PET_NNODES} and {index_name}"
        return whole(environ, index_name), whole(environ, env.PET_NNODES), names
    if counts_pods(environ) and env.WORLD_SIZE in environ:
        names = f"{env.WORLD_SIZE} and {env.RANK}"
        return whole(environ, env.RANK), whole(environ, env.WORLD_SIZE), names
    if environ.get(env.COMPLETION_INDEX):
        return whole(environ, env.COMPLETION_INDEX), 0, env.COMPLETION_INDEX
    return None, 0, ""


def _index_variable(environ: Mapping[str, str]) -> str:
    names = [env.PET_NODE_RANK, env.COMPLETION_INDEX]
    names += [env.RANK] * counts_pods(environ)
    return next((name for name in names if environ.get(name)), "")


def world_of_pod(pod: Pod) -> World:
    """Return the world of a script that each pod starts once, without a launcher.

    Raises UsageError if each pod was to start several ranks, or the pods have no common address.
    """
    if pod.index is None or not pod.master_addr:
        missing = "its index" if pod.index is None else env.MASTER_ADDR
        raise UsageError(_not_alone(pod, f"{missing} is not in its environment"))
    if pod.ranks not in ("", "1"):
        ranks = f"{env.PET_NPROC}={pod.ranks} asks for a launcher in each pod"
        raise UsageError(_not_alone(pod, ranks))
    return World(
        rank=pod.index,
        world_size=pod.count,
        node_rank=pod.index,
        num_nodes=pod.count,
        master_addr=pod.master_addr,
        master_port=pod.master_port or DEFAULT_PORT,
        launcher="kubernetes",
        reason=f"{pod.name} by {pod.source}, one rank in each",
    )


def _not_alone(pod: Pod, what: str) -> Finding:
    return Finding(
        "rank-env-missing",
        f"this script was started in {pod.name} without a launcher, and {what}",
        where=f"pod, {pod.source}",
        fix="paceline run script.py in place of python script.py; alone: PACELINE_LAUNCHER=none",
    )
