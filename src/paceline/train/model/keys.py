"""Choose which key of a module a foreign key stands for: wrappers put names in front of keys.

DDP and DataParallel add ``module.``, ``torch.compile`` adds ``_orig_mod.`` where it wraps, in any
order and depth. A module that has such a name itself keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

_OF_WRAPPERS = ("module", "_orig_mod")


def without_wrappers(key: str) -> str:
    """Return a key without the names that wrappers add."""
    return ".".join(part for part in key.split(".") if part not in _OF_WRAPPERS)


def match(keys: Iterable[str], own: Iterable[str]) -> dict[str, str]:
    """Return the module's key by each of the state's that names it in another way.

    Keys that are equal, fit none, or fit several are left out.
    """
    keys, own = list(keys), set(own)
    free = own - set(keys)
    by_core = _unique(free)
    cores = _unique(key for key in keys if key not in own)
    return {key: by_core[core] for core, key in cores.items() if core in by_core}


def _unique(keys: Iterable[str]) -> dict[str, str]:
    """Return keys by what remains without wrappers, where that is of one key only."""
    by_core: dict[str, list[str]] = {}
    for key in keys:
        by_core.setdefault(without_wrappers(key), []).append(key)
    return {core: group[0] for core, group in by_core.items() if len(group) == 1}


def accept_wrapped(model: nn.Module) -> None:
    """Make ``load_state_dict`` of a module accept the keys of wrapped ones."""
    hooks = model._load_state_dict_pre_hooks.values()
    if not any(isinstance(getattr(hook, "hook", hook), _Rename) for hook in hooks):
        model.register_load_state_dict_pre_hook(_Rename())


class _Rename:
    """Hook of ``load_state_dict`` that renames the keys of wrapped modules."""

    def __call__(self, module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        foreign = [key for key in state if key.startswith(prefix)]
        if all(without_wrappers(key) == key for key in foreign) and not _is_wrapped(module):
            return
        own = module.state_dict(prefix=prefix) if prefix else module.state_dict()
        for key, name in match(foreign, own).items():
            state[name] = state.pop(key)

    def __deepcopy__(self, _: Any) -> _Rename:
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # A pickled module must not need paceline: there, the hook is a call without an effect.
        return getattr, ("", "format")


def _is_wrapped(module: nn.Module) -> bool:
    """Return whether a module's own keys have names of wrappers."""
    return any(
        part in _OF_WRAPPERS for name, _ in module.named_modules() for part in name.split(".")
    )
