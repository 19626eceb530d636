"""Record sums of a rank's values in its first steps: inputs, outputs, gradients, updates.

Whatever the parallelism, a tensor of one process is on several ranks either divided, or held by
some ranks alike, or both. Sums over the local values of all ranks are then a whole multiple of
those of one process. So nothing needs to be known about the layout, and ranks exchange nothing.

Of the modules, forwards with gradients are recorded, the calls of a step together. Hooks go away
after the last recorded step.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from paceline.launch.probe.record_file import RecordFile
from paceline.launch.probe.record_masks import Masks, generator_states
from paceline.launch.probe.script_copies import copies_of
from paceline.launch.probe.value_sums import SumTable, dtype_precision, local, tensors_in
from paceline.machine.compiled import left_alone, not_traced
from paceline.machine.parameters import held_by, modules, names_of, without_wrappers
from paceline.rundir.files import read_bytes

MOST_PERIODS = 8  # of forwards, each with the optimizer steps that follow it
_NOISE = 1e-3  # of the usual gradient; below, rounding is a part that an optimizer makes large
_COARSE_NOISE = 16.0  # the same as a multiple of the precision of outputs
_MOST_CALLS = 4000  # modules of a period


@dataclass
class _Call:
    """The calls of a module in a period."""

    name: str
    parent: str  # the module within whose forward it was called; empty if there is none
    kind: str  # type of the module
    is_training: bool
    place: str  # line of the script that has called it first
    inputs: SumTable = field(default_factory=SumTable)
    sums: SumTable = field(default_factory=SumTable)  # of its outputs


@dataclass
class _Held:
    """An optimizer's parameters."""

    number: int
    parameters: list[Any]
    names: list[str]
    before: list[Any] = field(default_factory=list)  # local values before the current step
    # gradients at the end of the last backwards before a step
    raw: list[SumTable] = field(default_factory=list)
    noise: list[Any] = field(default_factory=list)  # where gradients were rounding alone


def _sums_apart(tensors: Iterable[Any]) -> SumTable:
    sums = SumTable()
    for tensor in tensors:
        sums.add_apart(tensor)
    return sums


def _gradient_sums(held: _Held) -> SumTable:
    """Sum gradients; a missing one is 0, so that it counts where other ranks have one."""
    return _sums_apart(
        parameter.grad if parameter.grad is not None else torch.zeros_like(local(parameter))
        for parameter in held.parameters
    )


def _floors_in(path: Path) -> dict[str, float]:
    """Return the limits below which gradients are noise, by period and optimizer."""
    with contextlib.suppress(OSError, ValueError):
        records = map(json.loads, read_bytes(path, most_bytes=1 << 26).splitlines())
        return {one["key"]: one["floor"] for one in records if one["kind"] == "floor"}
    return {}


def _without_noise(held: _Held, tensors: Iterable[Any]) -> Iterable[Any]:
    return map(_masked, tensors, held.noise)


def _masked(tensor: Any, noise: Any) -> Any:
    """Return the local part of a tensor, with 0 where its gradients are rounding alone."""
    values = local(tensor)
    is_alike = noise is not None and noise.shape == values.shape
    return values.masked_fill(noise, 0.0) if is_alike else values


class ValueRecords:
    """The values of this rank, by period: forwards, backwards, and the steps that follow them."""

    def __init__(
        self,
        file: RecordFile,
        place: Callable[[], str],  # the line of the script that runs
        is_users: Callable[[str], bool],
        reference: Path | None = None,  # the records of one rank, of a run before
    ) -> None:
        self._floors = {} if reference is None else _floors_in(reference)
        self._file, self._place, self._is_users = file, place, is_users
        self.masks = Masks(self._owner)
        self._period = 1
        self._has_stepped = False
        self._calls: dict[str, _Call] = {}
        self._inputs: dict[str, SumTable] = {}
        self._stack: list[tuple[int, str]] = []  # modules that run: their id, their name
        self._names: dict[int, str] = {}
        self._alive: list[Any] = []  # so that no id is given twice
        self._roots: list[Any] = []
        self._losses = SumTable()
        self._backwards = 0  # that run, one within the other
        self._state: Any = None  # of random generators when the forward began
        self._is_random = False
        self._precision = 0.0  # of the coarsest output in this period
        self._held: dict[int, _Held] = {}
        self._optimizers: list[Any] = []
        self._handles: list[Any] = []
        self._module_handles: list[Any] = []  # those of hooks of modules
        self._own_hooks: set[int] = set()  # modules that have hooks beside ours
        self._leave_last: Callable[..., None] = lambda *_: None

    # Modules

    def enter(self, module: Any, args: Any) -> None:
        """Note that a module begins its forward."""
        if not self._is_recording():
            return
        name = self._name(module)
        if self._has_stepped:
            self._next_period()
        if not self._stack:
            if self._state is None:
                self._state = generator_states()
                self.masks.drawn = []
            self._inputs.setdefault(name, SumTable()).add(tensors_in(args))
        is_wrapper = bool(self._stack) and self._stack[-1][1] == name
        if not is_wrapper and len(self._calls) < _MOST_CALLS:
            parent = self._stack[-1][1] if self._stack else ""
            call = self._calls.pop(name, None) or _Call(
                name, parent, type(module).__name__, module.training, self._place()
            )
            self._calls[name] = call  # in the order of their last calls
            call.inputs.add(tensors_in(args))
        self._stack.append((id(module), name))
        if module._forward_hooks and id(module) not in self._own_hooks:
            # Its hooks may change the output, as those of parallelize_module do. Ours comes last.
            self._own_hooks.add(id(module))
            self._module_handles.append(module.register_forward_hook(self._leave_last))

    def leave(self, module: Any, _args: Any, output: Any) -> None:
        """Add the output of a module's forward, unless its own hooks are to come."""
        if id(module) not in self._own_hooks:
            self._leave(module, output)

    def _leave(self, module: Any, output: Any) -> None:
        if not any(number == id(module) for number, _ in self._stack):
            return
        while self._stack.pop()[0] != id(module):
            pass  # modules whose forward has raised an exception
        name = self._name(module)
        is_wrapper = bool(self._stack) and self._stack[-1][1] == name
        if not is_wrapper and name in self._calls:
            self._calls[name].sums.add(tensors_in(output))

    def _is_recording(self) -> bool:
        return torch.is_grad_enabled() and not self._backwards and bool(self._handles)

    def _owner(self) -> str:
        return self._stack[-1][1] if self._stack and self._is_recording() else ""

    def _name(self, module: Any) -> str:
        if id(module) not in self._names:
            self._find_names(module)
        return self._names[id(module)]

    def _find_names(self, called: Any) -> None:
        """Name all modules that are not named yet by their path in the outermost module."""
        known = list(modules())
        inner = {id(child) for module in known for child in module.children()}
        roots = [module for module in known if id(module) not in inner]
        names = {}
        for root in roots:
            for name, module in root.named_modules(remove_duplicate=True):
                names[id(module)] = (root, without_wrappers(name))
        root, name = names.get(id(called), (called, ""))
        # A second model has names of its own.
        number = next((n for n, one in enumerate(self._roots) if one is root), len(self._roots))
        if number == len(self._roots):
            self._roots.append(root)
        for module_id, (its_root, its_name) in names.items():
            if its_root is root:
                parts = (
                    [self._title(root, number), its_name] if number or not its_name else [its_name]
                )
                self._names.setdefault(module_id, ".".join(filter(None, parts)))
        self._names.setdefault(id(called), type(called).__name__)
        self._alive += [module for module in known if names.get(id(module), (None,))[0] is root]
        self._alive.append(called)

    def _title(self, root: Any, number: int) -> str:
        """Return a name for an outermost module: its type, without wrappers."""
        while hasattr(root, "module") or hasattr(root, "_orig_mod"):
            root = root.module if hasattr(root, "module") else root._orig_mod
        kind = type(root).__name__.removeprefix("FSDP").removeprefix("Replicate")
        others = [one for one in self._roots[:number] if type(one) is type(root)]
        return f"{kind}#{len(others) + 1}" if others else kind

    # Backwards and steps

    def backward(self, run: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Run a backward, and note its losses."""
        is_recorded = not self._backwards and bool(self._handles)
        if is_recorded:
            self._file.guarded(self._feel)(*args, **kwargs)
        self._backwards += 1
        try:
            run(*args, **kwargs)
        finally:
            self._backwards -= 1
        if is_recorded:
            self._file.guarded(self._keep_raw)()

    def _keep_raw(self) -> None:
        """Sum the gradients as a backward leaves them: clipping changes all of them."""
        for optimizer in self._alive_optimizers():
            held = self._hold(optimizer)
            held.raw = [*held.raw[-1:], _gradient_sums(held)]

    def _alive_optimizers(self) -> list[Any]:
        if not self._optimizers:
            things = gc.get_objects()
            kind = torch.optim.Optimizer
            self._optimizers = [thing for thing in things if issubclass(type(thing), kind)]
        return self._optimizers

    def _feel(self, losses: Any = (), *_: Any, **__: Any) -> None:
        if self._has_stepped:  # no module was seen: it is compiled
            self._next_period()
        self._losses.add(tensors_in(losses))
        if self._state is not None:
            allowed = [self._state, *(after for after in self.masks.drawn)]
            self._is_random |= generator_states() not in allowed
            self._state = None

    def before_step(self, optimizer: Any, *_: Any) -> None:
        """Write what has led to a step, and keep the parameters that it begins with."""
        held = self._hold(optimizer)
        if not self._has_stepped:
            self._has_stepped = True
            self._write_forward()
        if self._is_over():
            return
        self._write("parameters", held, _sums_apart(_without_noise(held, held.parameters)))
        self._write("gradients", held, _gradient_sums(held))
        self._note_noise(held)
        if held.raw:
            self._write("raw", held, held.raw[-1])
        held.before = [local(parameter).clone() for parameter in held.parameters]

    def _note_noise(self, held: _Held) -> None:
        """Note values whose gradient is so far below the usual one that it may be rounding alone.

        The bias of a key in attention has no true gradient, and Adam makes full steps of its
        rounding. All ranks take the limit of the one rank that has run before.
        """
        gradients = [one.grad for one in held.parameters]
        dense = [local(one) for one in gradients if one is not None and not one.is_sparse]
        number = sum(one.numel() for one in dense)
        norms = [torch.linalg.vector_norm(one, dtype=torch.float64) for one in dense]
        usual = math.sqrt(sum(float(norm) ** 2 for norm in norms) / number) if number else 0.0
        floor = max(_NOISE, _COARSE_NOISE * self._precision) * usual
        key = f"{self._period}.{held.number}"
        self._file.write("floor", key=key, floor=floor)
        floor = self._floors.get(key, floor)
        for place, gradient in enumerate(gradients):
            if gradient is not None and not gradient.is_sparse:
                noise, before = local(gradient).abs() < floor, held.noise[place]
                held.noise[place] = noise if before is None else noise | before

    def after_step(self, optimizer: Any, *_: Any) -> None:
        """Write how a step has changed the parameters."""
        held = self._held.get(id(optimizer))
        if held is None or not held.before:
            return
        pairs = zip(held.parameters, held.before, strict=True)
        changes = (local(parameter).double() - before.double() for parameter, before in pairs)
        sums = _sums_apart(_without_noise(held, changes))
        held.before, held.raw = [], []
        rates = [float(group.get("lr", math.nan)) for group in optimizer.param_groups]
        self._file.write("rates", period=self._period, rates=rates)
        self._write("updates", held, sums)

    def _hold(self, optimizer: Any) -> _Held:
        held = self._held.get(id(optimizer))
        if held is None:
            parameters = held_by(optimizer)
            names = names_of(parameters)
            held = _Held(len(self._held), parameters, names, noise=[None] * len(names))
            self._held[id(optimizer)] = held
            if all(one is not optimizer for one in self._optimizers):
                self._optimizers.append(optimizer)  # alive, so that no id is given twice
        return held

    def _write(self, kind: str, held: _Held, sums: SumTable) -> None:
        precision = max(map(dtype_precision, held.parameters), default=0.0)
        self._file.write(
            kind,
            period=self._period,
            optimizer=held.number,
            names=held.names,
            sums=sums.rows(),
            precision=precision,
            place=self._place(),
        )

    def _write_forward(self) -> None:
        calls = list(self._calls.values())
        self._precision = max((call.sums.precision for call in calls), default=0.0)
        inputs = [table.total() for table in self._inputs.values()]
        self._file.write(
            "forward",
            period=self._period,
            inputs=dict(zip(self._inputs, inputs, strict=True)),
            calls=[
                {
                    "name": call.name,
                    "parent": call.parent,
                    "type": call.kind,
                    "is_training": call.is_training,
                    "place": call.place,
                    "inputs": call.inputs.total(),
                    "sums": call.sums.total(),
                    "precision": call.sums.precision,
                }
                for call in calls
            ],
            loss=self._losses.total(),
            num_losses=self._losses.count,
            is_random=self._is_random,
            is_idle=self._is_idle(),
            buffers=self._buffers(),
            masks=self.masks.taken(),
        )
        noise = {
            name: one
            for held in self._held.values()
            for name, one in zip(held.names, held.noise, strict=True)
        }
        for name, names, tensors in copies_of(self._parameters(), self._is_users):
            pairs = zip(tensors, [noise.get(one) for one in names], strict=True)
            rows = _sums_apart(_masked(tensor, mask) for tensor, mask in pairs).rows()
            self._file.write("copy", period=self._period, copy=name, names=names, sums=rows)

    def _buffers(self) -> dict[str, list[float]]:
        """Sum the buffers that modules have of their own."""
        called = [module for module in self._alive if self._names.get(id(module)) in self._calls]
        buffers = {}
        for module in called:
            path = "" if any(module is root for root in self._roots) else self._names[id(module)]
            for name, buffer in module._buffers.items():
                if buffer is not None and dtype_precision(buffer):
                    full = f"{path}.{name}" if path else name
                    buffers[full] = _sums_apart([buffer]).rows()[0]
        return buffers

    def _is_idle(self) -> bool:
        """Return whether the last backward has left all gradients as they were."""
        tables = [held.raw for held in self._held.values() if held.raw]
        pairs = [(raw[0].rows() if raw[1:] else None, raw[-1].rows()) for raw in tables]
        return bool(pairs) and all(
            after == before or (before is None and not any(row[2] for row in after))
            for before, after in pairs
        )

    def _parameters(self) -> dict[str, Any]:
        return {
            name: parameter
            for held in self._held.values()
            for name, parameter in zip(held.names, held.parameters, strict=True)
        }

    def _next_period(self) -> None:
        self._period += 1
        self._has_stepped, self._is_random, self._state = False, False, None
        self._calls, self._inputs, self._losses = {}, {}, SumTable()
        self._is_over()

    def _is_over(self) -> bool:
        """Return whether all periods are recorded; then modules are left alone."""
        if self._period <= MOST_PERIODS:
            return False
        self._leave_modules()
        for handle in self._handles:
            handle.remove()
        self._handles, self._stack, self._alive, self._optimizers = [], [], [], []
        return True

    def _leave_modules(self) -> None:
        """Follow no modules from now on."""
        for handle in self._module_handles:
            handle.remove()
        self._module_handles, self._stack = [], []

    def watch(self) -> None:
        """Follow every module, backward and optimizer from now on."""
        from torch.nn.modules import module
        from torch.optim import optimizer

        guarded, is_compiling = self._file.guarded, torch.compiler.is_dynamo_compiling
        backward = torch.autograd.backward

        def hook(function: Callable[..., None]) -> Callable[..., None]:
            recorded = guarded(function)

            def called(*args: Any) -> None:
                if not is_compiling():
                    recorded(*args)

            return left_alone(called)

        @functools.wraps(backward)
        def recorded_backward(*args: Any, **kwargs: Any) -> None:
            self.backward(backward, *args, **kwargs)

        self._leave_last = hook(lambda of_module, _, output: self._leave(of_module, output))
        compile_function = torch.compile

        @functools.wraps(compile_function)
        def compile_without_hooks(*args: Any, **kwargs: Any) -> Any:
            self._leave_modules()  # Dynamo would trace them
            return compile_function(*args, **kwargs)

        torch.compile = compile_without_hooks
        self._module_handles = [
            module.register_module_forward_pre_hook(hook(self.enter)),
            module.register_module_forward_hook(hook(self.leave)),
        ]
        self._handles = [
            optimizer.register_optimizer_step_pre_hook(hook(self.before_step)),
            optimizer.register_optimizer_step_post_hook(hook(self.after_step)),
        ]
        torch.autograd.backward = not_traced(recorded_backward)
