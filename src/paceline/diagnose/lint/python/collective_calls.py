"""Recognise collective calls of torch, Horovod, DeepSpeed, Lightning, Accelerate and paceline."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from paceline.diagnose.lint.python.objects import kinds, makes
from paceline.diagnose.lint.python.script import Script, keyword, words_of
from paceline.text.syntax import constant, dotted, last

_TORCH = words_of(
    """
    all_gather all_gather_coalesced all_gather_into_tensor all_gather_object
    all_reduce all_reduce_coalesced all_to_all all_to_all_single
    barrier broadcast broadcast_object_list gather gather_object monitored_barrier
    new_group new_subgroups reduce reduce_scatter reduce_scatter_tensor
    scatter scatter_object_list
    """
)
_HOROVOD = words_of(
    """
    allgather allgather_object allreduce allreduce_ allreduce_async alltoall barrier
    broadcast broadcast_ broadcast_object broadcast_optimizer_state broadcast_parameters
    grouped_allreduce reducescatter
    """
)
_METHODS = {
    "accelerator": words_of(
        """
        backward gather gather_for_metrics main_process_first pad_across_processes reduce
        wait_for_everyone
        """
    ),
    "fabric": words_of(
        """barrier broadcast all_gather all_reduce save setup setup_module rank_zero_first backward"""
    ),
    "trainer": frozenset(["fit", "validate", "test", "predict", "save_checkpoint"]),
    "session": words_of("""setup reduce gather once save restore barrier backward"""),
    "paceline-trainer": frozenset(["fit", "validate", "test"]),
    "engine": frozenset(
        ["save_checkpoint", "save_16bit_model", "load_checkpoint", "backward", "step"]
    ),
    "fsdp": frozenset(["state_dict"]),
}
_ACCELERATE = words_of(
    """gather gather_object broadcast broadcast_object_list reduce wait_for_everyone"""
)
_SUBGROUP = re.compile(r"group|(^|_)pg|mesh|subset", re.I)


@dataclass(frozen=True)
class Collective:
    """A call that all ranks must make.

    Attributes:
        kind: Calls of the same kind match each other.
        label: The call as findings show it.
        sure: Whether it certainly waits for the other ranks.
    """

    kind: str
    label: str
    sure: bool = True


def as_collective(script: Script, call: ast.Call) -> Collective | None:
    """Return a call as a collective, or None if it is not one."""
    return script.cached(("collective", call), lambda: _as_collective(script, call))


def _as_collective(script: Script, call: ast.Call) -> Collective | None:
    full = script.full(call.func)
    name = last(call)
    if full.startswith(("torch.distributed.", "deepspeed.comm.")) and name in _TORCH:
        return (
            None
            if _of_subgroup(call, name)
            else Collective(name.replace("monitored_", ""), f"{name}()")
        )
    if full.startswith("horovod.") and name in _HOROVOD:
        return Collective(name.rstrip("_"), f"{name}()")
    if full.startswith("accelerate.utils.") and name in _ACCELERATE:
        return Collective(name, f"{name}()")
    if (
        full
        and kinds(script, call) & {"ddp", "fsdp", "engine"}
        and name not in ("to", "cuda", "compile")
    ):
        return Collective("wrap", f"{name}(...)")
    return _method(script, call, name)


def _method(script: Script, call: ast.Call, name: str) -> Collective | None:
    if not isinstance(call.func, ast.Attribute) or name not in _ALL_METHODS:
        return _forward(script, call)
    chain = dotted(call.func)
    if chain in ("self.all_gather", "self.trainer.strategy.barrier") and _in_lightning_module(
        script, call
    ):
        return Collective(name, f"{chain}()")
    for kind in kinds(script, call.func.value, call):
        if name in _METHODS.get(kind, ()):
            if kind == "fsdp" and _saves_shards(script):
                return None
            return Collective(name, f"{chain}()", sure=_sure_of(script, call, kind))
    return None


_ALL_METHODS = frozenset().union(*_METHODS.values(), {"all_gather", "barrier"})


def _forward(script: Script, call: ast.Call) -> Collective | None:
    """Return the forward of an FSDP model, which gathers parameters; that of DDP may communicate
    nothing.
    """
    if not makes(script, "fsdp") or not dotted(call.func) or script.full(call.func):
        return None
    if "fsdp" in kinds(script, call.func, call):
        return Collective("forward", f"{dotted(call.func)}()")
    return None


def _of_subgroup(call: ast.Call, name: str) -> bool:
    if name == "new_group" and constant(keyword(call, "use_local_synchronization")) is True:
        return True
    groups = [k.value for k in call.keywords if k.arg in ("group", "process_group", "pg", None)]
    groups += [
        a
        for a in call.args
        if _SUBGROUP.search(dotted(a)) and name not in ("new_group", "new_subgroups")
    ]
    return any(constant(value) is not None and last(value) != "WORLD" for value in groups)


def _saves_shards(script: Script) -> bool:
    text = " ".join(script.imports.values()) + " ".join(
        last(n) for n in script.nodes if isinstance(n, ast.Attribute)
    )
    return bool(
        re.search(r"LOCAL_STATE_DICT|SHARDED_STATE_DICT|ShardedStateDict|LocalStateDict", text)
    )


def _in_lightning_module(script: Script, node: ast.AST) -> bool:
    owner = script.owner(node)
    return owner is not None and any(last(base) == "LightningModule" for base in owner.bases)


def _sure_of(script: Script, call: ast.Call, kind: str) -> bool:
    """Return whether an object has several processes; a Trainer or Fabric for one device waits for
    nobody.
    """
    if kind not in ("trainer", "fabric", "paceline-trainer"):
        return True
    constructors = makes(script, kind)
    return bool(constructors) and all(several(constructor) for constructor in constructors)


def several(constructor: ast.Call) -> bool:
    """Return whether a Trainer or Fabric certainly has several processes, by its arguments."""
    devices, nodes = (
        constant(keyword(constructor, "devices")),
        constant(keyword(constructor, "num_nodes")),
    )
    if isinstance(nodes, int) and nodes > 1:
        return True
    return isinstance(devices, int) and devices > 1
