"""Choose options from the pod of Kubernetes that this launcher is in. Pure.

torchrun's own ``PET_*`` variables, which Kubeflow sets, are options already. What is left are pods
of older operators and of JobSets, and who is awaited.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.errors import UsageError
from paceline.launch.plan.starter_defaults import POD, StarterDefaults
from paceline.launch.plan.typed_nodes import is_alone, most_nodes, other_number
from paceline.world import Pod


def choose_defaults(pod: Pod | None, *, requested: Mapping[str, object]) -> StarterDefaults:
    """Return the defaults of a run's options from its pod; None if nothing says which one it is.

    Raises UsageError if ``--nnodes`` does not allow the number of pods.
    """
    if is_alone(requested):
        return StarterDefaults()
    if pod is None:
        return StarterDefaults(starter=POD)
    if pod.count:
        where, starter = f"pod, {pod.source}", f"there are {pod.count} pods"
        contradicted = other_number(requested, pod.count, where=where, starter=starter)
        if contradicted:
            raise UsageError(contradicted)
    nodes = most_nodes(requested) or (str(pod.count) if pod.count else "")
    if not nodes and pod.index is not None:
        return StarterDefaults(source=f"{pod.name}, alone: nothing says how many there are")
    if nodes in ("", "1"):
        return StarterDefaults(starter=POD)
    hosts = pod.host_names(int(nodes)) if nodes.isdecimal() else []
    return StarterDefaults(
        values=_values(pod, requested),
        source=f"{pod.name} ({pod.source})" if pod.index is not None else "",
        starter=POD,
        port_reason="MASTER_PORT",
        hosts=tuple(hosts),
    )


def _values(pod: Pod, requested: Mapping[str, object]) -> dict[str, str]:
    values = {"nnodes": str(pod.count)} if pod.count else {}
    if str(requested.get("rdzv_backend") or "static") != "static":
        return values
    if pod.index is not None:
        values["node_rank"] = str(pod.index)
    if pod.master_addr and not (requested.get("rdzv_endpoint") or requested.get("master_addr")):
        values["master_addr"] = pod.master_addr
        if pod.master_port:
            values["master_port"] = str(pod.master_port)
    return values
