"""The model that ``Session.setup`` returns on several ranks: the user's module, averaged by DDP.

A script must not depend on the number of ranks. On one rank it has the module itself; on several it
has a ``DistributedDataParallel`` that looks like the module: its attributes, methods, properties,
keys and type. Only what the module does not have is DDP's, such as ``no_sync``, and two names
always are: ``module``, and calling the model.

DDP averages gradients only after its own ``forward``. So a method of the module that computes under
autograd counts as a forward, and a gradient that comes about in another way is refused by the
session (``gradients-not-averaged``).
"""

from __future__ import annotations

import copy
import functools
import operator
import re
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import UsageError
from paceline.machine.compiled import left_alone, not_traced
from paceline.text.wording import few_lines

# Attributes of the object itself; every other one is looked up in the module, then in DDP.
_OWN = frozenset(
    {
        "module",
        "_replica",
        "_note_copy",
        "_trained",
        "__call__",
        "__copy__",
        "__deepcopy__",
        "__reduce_ex__",
    }
)
# Special methods are looked up in the class. These are about making and reaching the object itself;
# the others, such as __len__, are the module's.
_OF_THE_OBJECT = frozenset(
    {
        "__call__",
        "__class__",
        "__class_getitem__",
        "__copy__",
        "__deepcopy__",
        "__delattr__",
        "__getattr__",
        "__getattribute__",
        "__init__",
        "__init_subclass__",
        "__new__",
        "__reduce__",
        "__reduce_ex__",
        "__setattr__",
        "__subclasshook__",
    }
)
_READING = frozenset(
    {
        "buffers",
        "children",
        "modules",
        "named_buffers",
        "named_children",
        "named_modules",
        "named_parameters",
        "parameters",
        "state_dict",
    }
)
_DEEPEST = 4  # objects inside each other in which tensors are searched


class ParallelModel(DistributedDataParallel):
    """A ``DistributedDataParallel`` with the attributes, methods and keys of the module inside.

    DDP's own state is in another object, ``_replica``, so that a module may have attributes whose
    names DDP uses too, such as ``dim`` or ``logger``.
    """

    module: nn.Module
    _replica: DistributedDataParallel
    _note_copy: Callable[[nn.Module], None]
    _trained: list[str]

    def __init__(
        self,
        replica: DistributedDataParallel,  # averages the gradients
        # called with each deep copy of the module, which has no DDP
        note_copy: Callable[[nn.Module], None],
    ) -> None:
        object.__setattr__(self, "_replica", replica)
        object.__setattr__(self, "_note_copy", note_copy)
        object.__setattr__(self, "module", replica.module)
        # DDP numbers the parameters that are trained when it is made.
        named = replica.module.named_parameters()
        names = [name for name, parameter in named if parameter.requires_grad]
        object.__setattr__(self, "_trained", names)

    @not_traced
    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Run the module's forward, and prepare DDP for the backward.

        Raises UsageError if parameters took no part in the last backward, so DDP still waits for
        them.
        """
        try:
            return self._replica(*inputs, **named)
        except RuntimeError as error:
            if unused := _unused_parameters(str(error), self._trained):
                raise _unused(unused) from None
            raise

    @left_alone
    def __getattribute__(self, name: str) -> Any:
        """Return the module's attribute, or DDP's if the module has none."""
        if name in _OWN:
            return object.__getattribute__(self, name)
        module, replica = self.module, self._replica
        try:
            value = getattr(module, name)
        except AttributeError:
            if not hasattr(replica, name):
                raise
            return getattr(replica, name)
        is_method = isinstance(value, types.MethodType) and value.__self__ is module
        if not is_method or _only_reads(value):
            return value
        return _method(self, replica, value)

    @left_alone
    def __setattr__(self, name: str, value: Any) -> None:
        """Set the module's attribute; DDP's only if the module has none of this name."""
        is_of_ddp = not hasattr(self.module, name) and hasattr(self._replica, name)
        setattr(self._replica if is_of_ddp else self.module, name, value)

    def __delattr__(self, name: str) -> None:
        """Delete the module's attribute."""
        delattr(self.module, name)

    def __copy__(self) -> nn.Module:
        """Return a shallow copy of the module, which no DDP averages."""
        return copy.copy(self.module)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        """Return a copy of the module, which no DDP averages."""
        duplicate = copy.deepcopy(self.module, memo)
        self._note_copy(duplicate)
        return duplicate

    def __reduce_ex__(self, _: Any) -> tuple[Any, ...]:
        """Pickle the module alone, so that a file can be read on one rank and without paceline."""
        return operator.getitem, ((self.module,), 0)


def wrap(replica: DistributedDataParallel, note_copy: Callable[[nn.Module], None]) -> ParallelModel:
    """Return the model that a script gets for a ``DistributedDataParallel``."""
    kind: Any = type(replica.module)
    return _class_for(kind)(replica, note_copy)


@functools.cache
def _class_for(kind: type[nn.Module]) -> type[ParallelModel]:
    """Return a ParallelModel with the special methods of a class, such as ``__len__``."""
    special: dict[str, Any] = {
        name: _special(name) for name in dir(kind) if _is_special(name) and _differs(kind, name)
    }
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind.__name__, (ParallelModel,), special | names)


def _is_special(name: str) -> bool:
    is_framed = name.startswith("__") and name.endswith("__")
    return is_framed and name not in _OF_THE_OBJECT


def _differs(kind: type[nn.Module], name: str) -> bool:
    """Return whether a class has a method other than that of every module."""
    method = getattr(kind, name)
    return callable(method) and method is not getattr(nn.Module, name, None)


def _special(name: str) -> Callable[..., Any]:
    def special(self: ParallelModel, *args: Any, **kwargs: Any) -> Any:
        return _result(self, self._replica, getattr(self.module, name)(*args, **kwargs))

    special.__name__ = name
    return special


def _only_reads(method: types.MethodType) -> bool:
    """Return whether a method is torch's, and neither computes nor returns the module.

    Dynamo requires these methods to be the module's own.
    """
    name = method.__name__
    return name in _READING and method.__func__ is getattr(nn.Module, name)


def _method(
    model: ParallelModel, replica: nn.Module, method: types.MethodType
) -> Callable[..., Any]:
    """Return a method of the module whose result is the model's where it is the module itself."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _result(model, replica, method(*args, **kwargs))

    return call


def _result(model: ParallelModel, replica: nn.Module, value: Any) -> Any:
    """Return the result of a method, after DDP was prepared for a backward through it."""
    if value is model.module:
        return model  # as after model = model.eval()
    if torch.is_grad_enabled() and any(True for _ in _graph_tensors(value)):
        return _average_gradients_of(model, replica, value)
    return value


def _average_gradients_of(model: ParallelModel, replica: nn.Module, value: Any) -> Any:
    """Pass a value through DDP's forward, which prepares the reduction of its gradients."""
    replica.module = nn.Identity()
    try:
        return model(value)
    finally:
        replica.module = model.module


def _unused_parameters(message: str, trained: list[str]) -> list[str]:
    """Return the parameters that DDP's message says it waits for; none for another message."""
    if "Expected to have finished reduction in the prior iteration" not in message:
        return []
    indices = re.search(r"did not receive grad for rank \d+: ([\d ,]+)", message)
    numbers = [int(number) for number in re.findall(r"\d+", indices[1])] if indices else []
    return [trained[number] for number in numbers if number < len(trained)] or ["unknown ones"]


def _unused(names: list[str]) -> UsageError:
    count = "1 parameter" if len(names) == 1 else f"{len(names)} parameters"
    return UsageError.of(
        "unused-parameters",
        f"{count} took no part in the last loss: {', '.join(few_lines(names, 3))}",
        where="the forward of the model, after the last session.backward(loss)",
        why="DDP waits for the gradients of all parameters before it averages them",
        fix=(
            "Session(strategy=paceline.DDP(find_unused_parameters=True)); or leave these"
            " parameters out of the model, or freeze them before session.setup"
        ),
    )


def _graph_tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value that a backward can start from, also those of plain objects."""
    if isinstance(value, torch.Tensor):
        if value.grad_fn is not None:
            yield value
        return
    if depth == _DEEPEST or isinstance(value, nn.Module | type):
        return
    for part in _parts(value):
        yield from _graph_tensors(part, depth + 1)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from list(value.values())
    elif isinstance(value, list | tuple):
        yield from value
    elif isinstance(value, dict | set | frozenset | str | bytes):
        return
    elif not callable(value):
        yield from list(getattr(value, "__dict__", {}).values())
