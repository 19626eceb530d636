"""Tables of the classes that the checks know, and of libraries that distribute data themselves."""

from __future__ import annotations

import ast

from paceline.diagnose.lint.python.script import Script, words_of

LIGHTNING = words_of("lightning pytorch_lightning lightning_fabric")
# Libraries that place ranks on GPUs, shard loaders and call set_epoch themselves.
DOES_IT_ALL = LIGHTNING | words_of(
    "accelerate paceline ignite composer catalyst fastai ray mmengine"
)
# The kind of an object by the name of its class; the packages that have a class of this name.
_CLASSES = {
    "DistributedDataParallel": ("ddp", {"torch"}),
    "FullyShardedDataParallel": ("fsdp", {"torch"}),
    "DistributedSampler": ("sharding-sampler", {"torch"}),
    "DataLoader": ("loader", {"torch"}),
    "initialize": ("engine", {"deepspeed"}),
    "Fabric": ("fabric", LIGHTNING),
    "Trainer": ("trainer", LIGHTNING),
    "Accelerator": ("accelerator", {"accelerate"}),
    "Session": ("session", {"paceline"}),
}


def kind_of(full: str) -> str:
    """Return the kind of object that a class makes, by its full name; empty if it is unknown."""
    package, name = full.partition(".")[0], full.rpartition(".")[2]
    if full == "paceline.Trainer":
        return "paceline-trainer"
    kind, packages = _CLASSES.get(name, ("", set()))
    return kind if package in packages else ""


def makes(script: Script, *kinds: str) -> list[ast.Call]:
    """Return the calls that create an object of one of the kinds."""
    return [call for call in script.calls if kind_of(script.full(call)) in kinds]
