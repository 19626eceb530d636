"""Sample local gradients in a few early steps, to find ranks that compute the same values.

Reading the same samples proves nothing: ranks may take slices of one global batch, split one model
or one sequence, or augment the samples. Equal losses, equal gradients before averaging and equal
parameters do prove it. They are sampled in the first steps of a training run whose ranks may read
the same data, and never afterwards.

A hook on the graph node that accumulates a gradient reads it. The hook lives for one backward and
belongs to no tensor or module, so neither torch.compile, nor a copy of the model, nor DDP's
reducer, which runs after it, is affected.
"""

from __future__ import annotations

import time
import weakref
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from paceline.launch.probe.orders import digest_of_bytes
from paceline.machine import accelerator

BACKWARDS = 3  # number of backwards that are sampled
_PARAMETERS = 8  # number of parameters whose gradients are sampled
_VALUES = 64  # sampled per gradient
_ALL_VALUES = 4096  # sampled of all parameters together
_LEAST_VALUES = 2  # sampled per parameter
_FIGURES = 8  # elements of a collective that may be losses or metrics of a step
_DISTINCT = 3  # with fewer distinct values, equal gradients prove nothing


class LocalGradients:
    """Sample the next backwards, and the parameters after the step that follows them."""

    def __init__(
        self,
        optimizer: Any,  # kept as a weak reference
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._backwards = 0
        self._samples: list[tuple[int, Any]] = []  # of the current backward
        self._handles: list[Any] = []
        self._numbers = array("d")
        self._since_ns = 0
        self.has_failed = False

    @property
    def is_under_way(self) -> bool:
        """Whether a backward is being sampled; a nested backward is part of it."""
        return bool(self._handles)

    @property
    def is_complete(self) -> bool:
        """Whether enough backwards are sampled: the next step completes the digest."""
        return self._backwards >= BACKWARDS

    def begin(self) -> None:
        """Sample the backward that begins now."""
        if self.has_failed or self.is_complete or self.is_under_way:
            return
        try:
            self._since_ns = time.time_ns()
            self._watch()
        except Exception:
            self._fail()

    def _watch(self) -> None:
        from torch.autograd.graph import get_gradient_edge

        parameters = _dense(self._optimizer())
        if (
            not parameters
            or _is_traced_or_captured()
            or any(parameter._backward_hooks for parameter in parameters)
        ):
            self._fail()  # a hook of the user may average the gradients
            return
        for place, parameter in enumerate(_spread(parameters, _PARAMETERS)):
            node = get_gradient_edge(parameter).node
            self._handles.append(node.register_prehook(partial(self._take, place)))

    def _take(self, place: int, gradients: Sequence[Any]) -> None:
        try:
            self._samples.append((place, _sampled(gradients[0], _VALUES).clone()))
        except Exception:
            self.has_failed = True

    def end(self, losses: Iterable[Any]) -> None:
        """Store the samples of the backward that has ended."""
        if not self.is_under_way:
            return
        try:
            self._release()
            gradients = _numbers(
                sample for _, sample in sorted(self._samples, key=lambda sample: sample[0])
            )
            self.has_failed = self.has_failed or len(set(gradients)) < _DISTINCT
            self._numbers += gradients + _numbers(_sampled(loss, 1) for loss in losses)
            self._samples = []
            self._backwards += 1
        except Exception:
            self._fail()

    def digest(self, entries: Callable[[], list[dict[str, Any]]]) -> int:
        """Return a hash of all samples and of the current parameters; 0 if they prove nothing.

        ``entries`` returns those of torch's Flight Recorder.
        """
        optimizer = self._optimizer()
        if self.has_failed or not self.is_complete or optimizer is None:
            return 0
        try:
            parameters = _dense(optimizer)
            if not are_averaged(
                entries(),
                sum(parameter.numel() for parameter in parameters),
                since_ns=self._since_ns,
            ):
                return 0
            count = max(_LEAST_VALUES, _ALL_VALUES // len(parameters))
            values = _numbers(_sampled(parameter, count) for parameter in parameters)
            return digest_of_bytes((self._numbers + values).tobytes())
        except Exception:
            return 0

    def _fail(self) -> None:
        self.has_failed = True
        self._release()

    def _release(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


def are_averaged(entries: Iterable[dict[str, Any]], num_elements: int, *, since_ns: int) -> bool:
    """Return whether consecutive reductions have exactly as many elements as the gradients. Pure.

    A model that is split manually reduces activations, which have another number of elements.
    ``entries`` are those of torch's Flight Recorder, oldest first, since the last backward began.
    """
    reduced = [
        sum(_product(size) for size in entry.get("input_sizes", ()))
        for entry in entries
        if "reduce" in str(entry["profiling_name"]) and entry["time_created_ns"] >= since_ns
    ]
    sums = list(accumulate(reduced, initial=0))
    return bool(reduced) and any(total - num_elements in sums for total in sums)


def exchanged(entries: Iterable[dict[str, Any]], *, since_ns: int) -> int:
    """Return how many elements ranks have exchanged, which may be gradients or activations. Pure.

    Figures such as a loss are left out. So are broadcasts, after which ranks have the same.
    """
    total = 0
    for entry in entries:
        name, sizes = str(entry["profiling_name"]), entry.get("input_sizes", ())
        elements = sum(map(_product, sizes))
        is_figure = elements <= _FIGURES and ("reduce" in name or "gather" in name)
        is_of_one = "broadcast" in name or "barrier" in name
        if entry["time_created_ns"] >= since_ns and not (is_figure or is_of_one):
            total += elements
    return total


def losses_of(tensors: Any = (), *_: Any, **__: Any) -> list[Any]:
    """Return the losses among the arguments of ``torch.autograd.backward``."""
    return list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]


def _product(size: Sequence[int]) -> int:
    product = 1
    for length in size:
        product *= length
    return product


def _dense(optimizer: Any) -> list[Any]:
    """Return the parameters that get gradients; none unless all are plain, whole leaf tensors."""
    groups = optimizer.param_groups if optimizer is not None else []
    parameters = [tensor for group in groups for tensor in group["params"] if tensor.requires_grad]
    return parameters if all(map(_is_plain_leaf, parameters)) else []


def _is_plain_leaf(parameter: Any) -> bool:
    is_shard = hasattr(parameter, "_local_tensor") or _is_flat(parameter)
    return parameter.is_leaf and not is_shard


def _is_flat(parameter: Any) -> bool:
    """Return whether FSDP's first version keeps this parameter in shards."""
    return hasattr(parameter, "_fsdp_flattened") or type(parameter).__name__ == "FlatParameter"


def _spread(parameters: Sequence[Any], count: int) -> list[Any]:
    """Return ``count`` parameters, evenly spaced from the first to the last."""
    if len(parameters) <= count:
        return list(parameters)
    step = (len(parameters) - 1) / (count - 1)
    return [parameters[round(place * step)] for place in range(count)]


def _sampled(tensor: Any, count: int) -> Any:
    """Return values of a dense tensor, at the same indices in every rank."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, len(flat) // count)][:count]


def _numbers(tensors: Iterable[Any]) -> array[float]:
    """Return the values of tensors; synchronizes once with each device."""
    import torch

    by_device: dict[Any, list[Any]] = {}
    for tensor in tensors:
        plain = torch.view_as_real(tensor).reshape(-1) if tensor.is_complex() else tensor
        by_device.setdefault(plain.device, []).append(plain.to(torch.float64))
    return array(
        "d", [value for group in by_device.values() for value in torch.cat(group).tolist()]
    )


def _is_traced_or_captured() -> bool:
    """Return whether the backward is compiled or captured as a CUDA graph: no value may be read."""
    import sys

    import torch

    compiled: Any = sys.modules.get("torch._dynamo.compiled_autograd")
    if compiled is not None and getattr(compiled, "compiled_autograd_enabled", False):
        return True
    if torch._C._len_torch_dispatch_stack() > 0:
        return True
    return accelerator.is_capturing()
