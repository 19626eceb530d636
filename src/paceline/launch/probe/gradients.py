"""Local gradients of a few early steps: whether two ranks compute the same thing, or only read the same samples.

Reading the same samples proves nothing: ranks may take slices of one global batch, split one model or one sequence, or
augment what they read. What they compute tells: the loss, the gradients before they are averaged, and the parameters.
They are sampled in the first steps of a training whose data may be shared, and never afterwards.

A gradient is seen by a hook on the graph's node that accumulates it. The hook lives for one backward and belongs to no
tensor or module, so that neither torch.compile, nor a copy of the model, nor DDP's reducer, which takes the gradient
after it, ever meets it.
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

BACKWARDS = 3  # that are sampled
_PARAMETERS = 8  # whose gradients are sampled
_VALUES = 64  # of a gradient
_ALL_VALUES = 4096  # of all parameters, together
_LEAST_VALUES = 2  # of a parameter
_DISTINCT = 3  # with fewer values in the gradients, two ranks may well look alike


class LocalGradients:
    """Samples the next backwards, and the parameters after the step that follows them.

    Args:
        optimizer: What steps; referred to weakly.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._backwards = 0
        self._samples: list[tuple[int, Any]] = []  # of the backward that is under way
        self._handles: list[Any] = []
        self._numbers = array("d")
        self._since_ns = 0
        self.has_failed = False

    @property
    def is_under_way(self) -> bool:
        """A backward is being watched; another one, inside it, belongs to it."""
        return bool(self._handles)

    @property
    def is_complete(self) -> bool:
        """The next step is the one after which the parameters are compared."""
        return self._backwards >= BACKWARDS

    def begin(self) -> None:
        """Watch the backward that begins now."""
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
        if not parameters or _is_traced_or_captured() or any(each._backward_hooks for each in parameters):
            self._fail()  # a hook of the user's may be what averages
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
        """Take the samples of the backward that has ended.

        Args:
            losses: What it began with.
        """
        if not self.is_under_way:
            return
        try:
            self._release()
            gradients = _numbers(sample for _, sample in sorted(self._samples, key=lambda sample: sample[0]))
            self.has_failed = self.has_failed or len(set(gradients)) < _DISTINCT
            self._numbers += gradients + _numbers(_sampled(loss, 1) for loss in losses)
            self._samples = []
            self._backwards += 1
        except Exception:
            self._fail()

    def digest(self, entries: Callable[[], list[dict[str, Any]]]) -> int:
        """Return a hash of all samples and of the parameters as they are now; 0 if nothing is shown.

        Args:
            entries: Returns what torch's Flight Recorder has kept of collectives.
        """
        optimizer = self._optimizer()
        if self.has_failed or not self.is_complete or optimizer is None:
            return 0
        try:
            parameters = _dense(optimizer)
            if not are_averaged(entries(), sum(each.numel() for each in parameters), since_ns=self._since_ns):
                return 0
            count = max(_LEAST_VALUES, _ALL_VALUES // len(parameters))
            return digest_of_bytes((self._numbers + _numbers(_sampled(each, count) for each in parameters)).tobytes())
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
    """Return whether reductions that follow each other carry exactly as many elements as the gradients have. Pure.

    A model that is split by hand reduces activations, of which there are other numbers.

    Args:
        entries: What torch's Flight Recorder has kept of collectives, oldest first.
        num_elements: Of all gradients.
        since_ns: When the last backward began.
    """
    reduced = [
        sum(_product(size) for size in entry.get("input_sizes", ()))
        for entry in entries
        if "reduce" in str(entry["profiling_name"]) and entry["time_created_ns"] >= since_ns
    ]
    sums = list(accumulate(reduced, initial=0))
    return bool(reduced) and any(total - num_elements in sums for total in sums)


def losses_of(tensors: Any = (), *_: Any, **__: Any) -> list[Any]:
    """Return what ``torch.autograd.backward`` begins with, from its arguments."""
    return list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]


def _product(size: Sequence[int]) -> int:
    product = 1
    for length in size:
        product *= length
    return product


def _dense(optimizer: Any) -> list[Any]:
    """Return the parameters that get gradients; none if one of them is no plain leaf, or a shard."""
    groups = optimizer.param_groups if optimizer is not None else []
    parameters = [each for group in groups for each in group["params"] if each.requires_grad]
    if any(not each.is_leaf or hasattr(each, "_local_tensor") or _is_flat(each) for each in parameters):
        return []
    return parameters


def _is_flat(parameter: Any) -> bool:
    """Return whether FSDP's first version keeps this parameter in shards."""
    return hasattr(parameter, "_fsdp_flattened") or type(parameter).__name__ == "FlatParameter"


def _spread(parameters: Sequence[Any], count: int) -> list[Any]:
    """Return ``count`` of the parameters, from the first to the last."""
    if len(parameters) <= count:
        return list(parameters)
    step = (len(parameters) - 1) / (count - 1)
    return [parameters[round(place * step)] for place in range(count)]


def _sampled(tensor: Any, count: int) -> Any:
    """Return values of a dense tensor, at the same places in every rank."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, len(flat) // count)][:count]


def _numbers(tensors: Iterable[Any]) -> array[float]:
    """Return the values of tensors; each device is waited for once."""
    import torch

    by_device: dict[Any, list[Any]] = {}
    for tensor in tensors:
        plain = torch.view_as_real(tensor).reshape(-1) if tensor.is_complex() else tensor
        by_device.setdefault(plain.device, []).append(plain.to(torch.float64))
    return array("d", [value for group in by_device.values() for value in torch.cat(group).tolist()])


def _is_traced_or_captured() -> bool:
    """Return whether the backward is compiled with the rest, or recorded as a CUDA graph: nothing may be read there."""
    import sys

    import torch

    compiled: Any = sys.modules.get("torch._dynamo.compiled_autograd")
    if compiled is not None and getattr(compiled, "compiled_autograd_enabled", False):
        return True
    if torch._C._len_torch_dispatch_stack() > 0:
        return True
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
