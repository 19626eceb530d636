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
        "backward gather gather_for_metrics main_process_first pad_across_processes reduce"
        " wait_for_everyone"
    ),
    "fabric": words_of(
        "all_gather all_reduce backward barrier broadcast rank_zero_first save setup setup_module"
    ),
    "trainer": words_of("fit predict save_checkpoint test validate"),
    "session": words_of("backward barrier gather mean once reduce restore save setup"),
    "paceline-trainer": words_of("fit test validate"),
    "engine": words_of("backward load_checkpoint save_16bit_model save_checkpoint step"),
    "fsdp": words_of("state_dict"),
}
_ACCELERATE = words_of(
    "broadcast broadcast_object_list gather gather_object reduce wait_for_everyone"
)
_SHARDED_STATE = re.compile(r"LOCAL_STATE_DICT|SHARDED_STATE_DICT|ShardedStateDict|LocalStateDict")
_SUBGROUP = re.compile(r"group|(^|_)pg|mesh|subset", re.I)


@dataclass(frozen=True)
class Collective:
    """A call that all ranks must make."""

    kind: str  # calls of the same kind match each other
    label: str  # the call as findings show it
    sure: bool = True  # whether it certainly waits for the other ranks


def as_collective(script: Script, call: ast.Call) -> Collective | None:
    """Return a call as a collective, or None if it is not one."""
    return script.cached(("collective", call), lambda: _as_collective(script, call))


def _as_collective(script: Script, call: ast.Call) -> Collective | None:
    full, name = script.full(call.func), last(call)
    if full.startswith(("torch.distributed.", "deepspeed.comm.")) and name in _TORCH:
        kind = name.replace("monitored_", "")
        # Ranks outside a group take no part in its collectives: a rank condition is right there.
        return None if _of_subgroup(call, name) else Collective(kind, f"{name}()")
    if full.startswith("horovod.") and name in _HOROVOD:
        return Collective(name.rstrip("_"), f"{name}()")
    if full.startswith("accelerate.utils.") and name in _ACCELERATE:
        return Collective(name, f"{name}()")
    # The constructor of DDP compares the shapes of all ranks and broadcasts parameters; to(),
    # cuda() and compile() of a wrapped model call no other rank.
    wraps = bool(full) and name not in ("to", "cuda", "compile")
    if wraps and kinds(script, call) & {"ddp", "fsdp", "engine"}:
        return Collective("wrap", f"{name}(...)")
    return _method(script, call, name)


def _method(script: Script, call: ast.Call, name: str) -> Collective | None:
    if name == "save_model" and _is_trainer(script, call) and _names_fsdp(script):
        return Collective(name, f"{dotted(call.func)}() under FSDP", sure=False)
    if not isinstance(call.func, ast.Attribute) or name not in _ALL_METHODS:
        return _forward(script, call)
    chain = dotted(call.func)
    is_own = chain in ("self.all_gather", "self.trainer.strategy.barrier")
    if is_own and _in_lightning_module(script, call):
        return Collective(name, f"{chain}()")
    for kind in kinds(script, call.func.value, call):
        if name in _METHODS.get(kind, ()):
            # FSDP's state_dict() gathers parameters, unless the file chooses to keep shards.
            if kind == "fsdp" and _saves_shards(script):
                return None
            return Collective(name, f"{chain}()", sure=_sure_of(script, call, kind))
    return None


def _is_trainer(script: Script, call: ast.Call) -> bool:
    """Return whether a method's object is a Trainer of transformers or trl, made in this file."""
    if not isinstance(call.func, ast.Attribute) or not script.roots & {"transformers", "trl"}:
        return False
    made = [value.value for value in script.assigned(dotted(call.func.value), call)]
    return any(isinstance(value, ast.Call) and last(value).endswith("Trainer") for value in made)


def _names_fsdp(script: Script) -> bool:
    """Return whether the file gives ``fsdp`` a strategy, as TrainingArguments take it."""
    keywords = [(keyword.arg, keyword.value) for call in script.calls for keyword in call.keywords]
    entries = [
        (constant(target.slice), node.value)
        for node in script.nodes
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Subscript)
    ]
    return any(
        name == "fsdp" and "full_shard" in str(constant(value))
        for name, value in keywords + entries
    )


_ALL_METHODS = frozenset().union(*_METHODS.values(), {"all_gather", "barrier"})


def _forward(script: Script, call: ast.Call) -> Collective | None:
    """Return the forward of an FSDP model; that of DDP may communicate nothing."""
    if not makes(script, "fsdp") or not dotted(call.func) or script.full(call.func):
        return None
    if "fsdp" in kinds(script, call.func, call):
        return Collective("forward", f"{dotted(call.func)}()")
    return None


def _of_subgroup(call: ast.Call, name: str) -> bool:
    if name == "new_group" and constant(keyword(call, "use_local_synchronization")) is True:
        return True
    # All ranks call new_group; its arguments name the group it makes, not one to talk in.
    groups = [k.value for k in call.keywords if k.arg in ("group", "process_group", "pg", None)]
    groups += [
        a
        for a in call.args
        if _SUBGROUP.search(dotted(a)) and name not in ("new_group", "new_subgroups")
    ]
    return any(constant(value) is not None and last(value) != "WORLD" for value in groups)


def _saves_shards(script: Script) -> bool:
    """Return whether the file names the state dicts of FSDP that each rank saves for itself."""
    attributes = [node.attr for node in script.nodes if isinstance(node, ast.Attribute)]
    return any(map(_SHARDED_STATE.search, [*script.imports.values(), *attributes]))


def _in_lightning_module(script: Script, node: ast.AST) -> bool:
    owner = script.owner(node)
    return owner is not None and any(last(base) == "LightningModule" for base in owner.bases)


def _sure_of(script: Script, call: ast.Call, kind: str) -> bool:
    """Return whether an object has several processes; one for one device waits for nobody."""
    if kind not in ("trainer", "fabric", "paceline-trainer"):
        return True
    constructors = makes(script, kind)
    return bool(constructors) and all(several(constructor) for constructor in constructors)


def several(constructor: ast.Call) -> bool:
    """Return whether a Trainer or Fabric certainly has several processes, by its arguments."""
    # "auto" and numbers that come from outside may be one device.
    counts = [constant(keyword(constructor, name)) for name in ("devices", "num_nodes")]
    return any(isinstance(count, int) and count > 1 for count in counts)
