"""Convert state to a flat dict of tensors and plain objects that any number of ranks can load.

Models keep the user's keys. Optimizer state is stored under the names of parameters rather than
their numbers, so that one file serves ddp, fsdp and any world size.

    model/<key>                         parameters and buffers; of a second model model.1/<key>
    optimizer/<n>/<parameter>/<name>    a tensor of a parameter's state
    optimizer/<n>/groups                groups: options, names of parameters, and plain state
    <name>/<path>                       tensors from any other nested state, see ``lift``
    rank/<r>/<name>                     a tensor that only rank r has
    rank/<r>/object/<name>              an object that only it has, pickled
"""

from __future__ import annotations

import copy
import ctypes
import io
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from paceline.errors import UsageError
from paceline.train.checkpoint import optimizer_state, unpickling
from paceline.train.model import keys

_OBJECT = "object/"


@unpickling.allow
class Tensor(NamedTuple):
    """Placeholder in a nested state for a tensor that is stored under its own name."""

    name: str


def of_models(models: Sequence[nn.Module]) -> dict[str, Any]:
    """Return the state of the user's modules."""
    return {
        f"{_prefix(number)}/{key}": value
        for number, model in enumerate(models)
        for key, value in model.state_dict().items()
    }


def targets_of_models(
    models: Sequence[nn.Module], state: Mapping[str, Any]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the tensors of ``of_models`` to fill in place.

    The first part are the parameters and buffers themselves, which need nothing more. The second
    part are copies that a hook has made; ``load_models`` passes these to the model. All other
    entries, which modules define freely, may change shape and type, and are loaded as new objects.
    """
    held = {
        f"{_prefix(number)}/{name}": value
        for number, model in enumerate(models)
        for named in (model.named_parameters, model.named_buffers)
        for name, value in named(remove_duplicate=False)
    }
    memory = {_memory(value) for value in held.values()}
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    own = {name: value for name, value in tensors.items() if _memory(value) in memory}
    copies = {
        name: value
        for name, value in tensors.items()
        if name not in own and (name in held or hasattr(value, "device_mesh"))
    }
    return own, copies


def load_models(models: Sequence[nn.Module], state: Mapping[str, Any]) -> None:
    """Load the entries that are not filled in place, such as a module's extra state.

    Raises UsageError if a module does not accept an entry of its own ``state_dict``.
    """
    for number, model in enumerate(models):
        prefix = f"{_prefix(number)}/"
        extra = {
            key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)
        }
        if not extra:
            continue
        whole = model.state_dict()  # updated and not rebuilt, because it has module versions
        for key, value in extra.items():
            whole[key] = _moved(value, whole.get(key))
        # Names were compared earlier; entries that a model leaves out of its state_dict are not
        # missing.
        mismatches = model.load_state_dict(whole, strict=False)
        unexpected = getattr(mismatches, "unexpected_keys", ())  # an override may return None
        if lost := [key for key in extra if key in unexpected]:
            raise _not_accepted(model, lost)


class SavedDescription(Protocol):
    """The description of a checkpoint that is used here."""

    @property
    def tensors(self) -> Mapping[str, Any]: ...
    @property
    def objects(self) -> Collection[str]: ...
    @property
    def world_size(self) -> int: ...


class Source(Protocol):
    """An object that loads checkpoints."""

    def load(
        self,
        saved: Any,
        into: Mapping[str, torch.Tensor],
        beside: Collection[str] | None = None,
        own: int | None = None,
        *,
        trust: bool = False,
    ) -> dict[str, Any]: ...


def snapshot(
    models: Sequence[nn.Module],  # the user's modules
    optimizers: Sequence[Optimizer],
    own: Any,  # all other state that is the same on all ranks, nested
    random: Any,  # state of this rank
    *,
    rank: int,
) -> dict[str, Any]:
    """Return the state of a training run."""
    names = parameter_names(models)
    state = of_models(models)
    for number, optimizer in enumerate(optimizers):
        state |= optimizer_state.of_optimizer(optimizer, number, names)
    tensors: dict[str, Any] = {}
    state["session"] = lift(own, "session", tensors)
    return {**state, **tensors, f"rank/{rank}/random": as_tensor(random)}


def of_rank(own: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """Return the entries of tensors and objects that only one rank has."""
    entries = {}
    for name, value in own.items():
        if isinstance(value, torch.Tensor):
            entries[f"rank/{rank}/{name}"] = value
        else:
            entries[f"rank/{rank}/{_OBJECT}{name}"] = as_tensor(value)
    return entries


def _own_of(state: Mapping[str, Any], unpickle: Callable[[torch.Tensor], Any]) -> dict[str, Any]:
    """Return the tensors and objects that only one rank has, by name."""
    own = {}
    for entry, value in state.items():
        if not entry.startswith("rank/"):
            continue
        name = entry.split("/", 2)[2]
        if name.startswith(_OBJECT):
            own[name.removeprefix(_OBJECT)] = unpickle(value)
        else:
            own[name] = value
    return own


def load(
    source: Source,  # loads checkpoints
    saved: SavedDescription,
    models: Sequence[nn.Module],
    optimizers: Sequence[Optimizer],
    own: int | None = None,  # the rank whose own entries are loaded; this rank if None
    *,
    trust: bool = False,
) -> dict[str, Any]:
    """Load a snapshot into the user's models and their optimizers.

    Returns its ``session``, ``random`` (or None) and ``world_size``; and ``own``, the rank's own
    entries. ``trust`` is as for ``unpickling.load``.
    """
    present = of_models(models)
    there = entries_elsewhere([*saved.tensors, *saved.objects], present)
    names = parameter_names(models, there)
    held, copies = targets_of_models(models, present)
    momenta: dict[str, torch.Tensor] = {}
    for number in range(len(optimizers)):
        momenta |= optimizer_state.targets_of_optimizer(saved.tensors, number, names)
    beside = present.keys() - held.keys() - copies.keys()
    targets = {there.get(name, name): value for name, value in {**held, **copies}.items()}
    loaded = source.load(
        saved, targets | momenta, {there.get(name, name) for name in beside}, own, trust=trust
    )
    here = {entry: name for name, entry in there.items()}
    state = {here.get(entry, entry): value for entry, value in loaded.items()} | momenta
    where = str(getattr(saved, "path", ""))

    def unpickle(tensor: torch.Tensor) -> Any:
        return from_tensor(tensor, trust=trust, where=where)

    of_one_rank = _own_of(state, unpickle)
    load_models(models, copies | state)
    for number, optimizer in enumerate(optimizers):
        optimizer_state.load_optimizer(optimizer, number, names, state)
    random = of_one_rank.get("random")
    return {
        "session": lower(state["session"], state),
        "random": None if random is None else unpickle(random),
        "world_size": saved.world_size,
        "own": of_one_rank,
    }


def entries_elsewhere(saved: Collection[str], present: Collection[str]) -> dict[str, str]:
    """Return a checkpoint's name for entries of models that it names in another way.

    A model may be compiled, or wrapped, where it is loaded and not where it was saved, or the
    other way round.
    """
    elsewhere: dict[str, str] = {}
    for prefix in {f"{name.partition('/')[0]}/" for name in present}:
        there = [name.removeprefix(prefix) for name in saved if name.startswith(prefix)]
        here = [name.removeprefix(prefix) for name in present if name.startswith(prefix)]
        for entry, name in keys.match(there, here).items():
            elsewhere[prefix + name] = prefix + entry
    return elsewhere


def parameter_names(
    models: Sequence[nn.Module],
    # result of ``entries_elsewhere``, for the names in a checkpoint
    elsewhere: Mapping[str, str] | None = None,
) -> dict[nn.Parameter, str]:
    """Return a name for each parameter, unique over all models."""
    names: dict[nn.Parameter, str] = {}
    for number, model in enumerate(models):
        prefix = f"{_prefix(number)}/"
        for own, parameter in model.named_parameters():
            name = (elsewhere or {}).get(prefix + own, prefix + own).removeprefix(prefix)
            names[parameter] = name if number == 0 else f"model.{number}.{name}"
    return names


def of_object(value: Any) -> Any:
    """Return the state of a registered object; of a module, with its keys on a single rank.

    On several ranks, a model that ``setup`` returned is a ``DistributedDataParallel``. A module
    around it, such as an ``AveragedModel``, then has an additional ``module.`` in its keys.
    """
    state, prefixes = value.state_dict(), _parallel_prefixes(value)
    return _renamed(state, {key: _without(key, prefixes) for key in state}) if prefixes else state


def load_object(value: Any, state: Any) -> None:
    """Load the result of ``of_object`` from any number of ranks, or the keys of parallel models."""
    prefixes = _parallel_prefixes(value)
    if prefixes:
        own = {_without(key, prefixes): key for key in value.state_dict()}
        state = _renamed(state, {key: own.get(_without(key, prefixes), key) for key in state})
    value.load_state_dict(state)


def _renamed(state: Mapping[str, Any], names: Mapping[str, str]) -> OrderedDict[str, Any]:
    """Return a module's state under other keys."""
    return OrderedDict((names[key], part) for key, part in state.items())


def _parallel_prefixes(value: Any) -> list[str]:
    """Return the key prefixes of parallel models inside a module, the outer ones last."""
    if not isinstance(value, nn.Module):
        return []
    parallel = [
        name
        for name, module in value.named_modules()
        if isinstance(module, DistributedDataParallel)
    ]
    return [f"{name}." if name else "" for name in reversed(parallel)]


def _without(key: str, prefixes: Sequence[str]) -> str:
    """Return a key without the ``module.`` of parallel models."""
    for prefix in prefixes:
        if key.startswith(f"{prefix}module."):
            key = prefix + key.removeprefix(f"{prefix}module.")
    return key


def lift(value: Any, name: str, tensors: dict[str, Any]) -> Any:
    """Return nested state with its tensors moved to ``tensors``, under ``name`` and their path."""
    if isinstance(value, torch.Tensor):
        while name in tensors:  # keys such as {1: ..., "1": ...} collide
            name += "'"
        tensors[name] = value
        return Tensor(name)
    return _rebuilt(value, lambda part, key: lift(part, f"{name}/{key}", tensors))


def lower(value: Any, tensors: Mapping[str, Any]) -> Any:
    """Return nested state with its tensors back in place."""
    if isinstance(value, Tensor):
        return tensors[value.name]
    return _rebuilt(value, lambda part, _: lower(part, tensors))


def as_tensor(value: Any) -> torch.Tensor:
    """Pickle an object into a byte tensor, because a rank writes its own entries as tensors."""
    file = io.BytesIO()
    torch.save(value, file)
    return torch.frombuffer(bytearray(file.getbuffer()), dtype=torch.uint8)


def from_tensor(tensor: torch.Tensor, *, trust: bool = False, where: str = "") -> Any:
    """Return the object that ``as_tensor`` pickled; see ``unpickling.load``."""
    whole = tensor.contiguous()
    memory = ctypes.string_at(whole.data_ptr(), whole.nbytes)  # works without NumPy
    return unpickling.load(io.BytesIO(memory), trust=trust, where=where)


def _rebuilt(value: Any, function: Callable[[Any, Any], Any]) -> Any:
    if type(value) in (dict, OrderedDict, defaultdict):
        # A copy keeps the default factory and attributes: a module's state_dict has versions in
        # _metadata.
        new = copy.copy(value)
        new.update({key: function(part, key) for key, part in value.items()})
        return new
    if type(value) in (list, tuple):
        return type(value)(function(part, number) for number, part in enumerate(value))
    return value


def _memory(tensor: torch.Tensor) -> int:
    """Return an id of a tensor's memory, also for shards and for tensors without values."""
    local = cast(Any, tensor).to_local() if hasattr(tensor, "to_local") else tensor
    return int(local.untyped_storage()._cdata)


def _moved(value: Any, present: Any) -> Any:
    """Return a loaded value, on the present value's device if both are tensors."""
    both = isinstance(value, torch.Tensor) and isinstance(present, torch.Tensor)
    return value.to(present.device) if both else value


def _prefix(number: int) -> str:
    return "model" if number == 0 else f"model.{number}"


def _not_accepted(model: nn.Module, keys: list[str]) -> UsageError:
    return UsageError.of(
        "checkpoint-other-model",
        f"{type(model).__name__} does not accept {len(keys)} of the entries of its own"
        f" state_dict, {keys[0]} first",
        where="session.restore(...)",
        why="their values would be lost silently",
        fix="the counterpart of its hook: module.register_load_state_dict_pre_hook(...)",
    )


def share_bytes(
    models: Sequence[nn.Module], optimizers: Sequence[Optimizer], num_ranks: int
) -> int:
    """Return about how many bytes of tensors each of so many ranks writes."""
    tensors: list[Any] = []
    for model in models:
        tensors += [*model.parameters(), *model.buffers()]
    for optimizer in optimizers:
        for state in optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    # Of a sharded tensor each rank writes its own piece.
    pieces = sum(tensor.to_local().nbytes for tensor in tensors if hasattr(tensor, "to_local"))
    shared = sum(tensor.nbytes for tensor in tensors if not hasattr(tensor, "to_local"))
    return int(pieces + shared // num_ranks)
