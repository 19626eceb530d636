"""Say what makes the results of a session depend on the number of ranks.

The random operations of the first training step are such, because each rank draws for itself.
Python's profile function sees calls of torch's functions, whose generators are read before and
after. So no number changes, nothing of torch is replaced, and compilation and CUDA graphs see
nothing of it; after the first step the function is gone. A dispatch mode would be seen by all of
these. Not seen are operations in compiled code, and those with a generator of the script's own,
which may be seeded alike on all ranks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from paceline.errors import Finding
from paceline.train.data import BatchTracker, Iteration, numpy_memory, python_memory
from paceline.train.model.strategy import DDP, Strategy
from paceline.train.session.few_rows import BATCH_NORMS


def _with_in_place(names: str) -> frozenset[str]:
    return frozenset(f"{name}{ending}" for name in names.split() for ending in ("", "_"))


# Functions of torch that draw random numbers, some of them only with certain arguments.
_LIKE_DROPOUT = _with_in_place(
    "alpha_dropout dropout feature_alpha_dropout feature_dropout gru lstm native_dropout rnn_relu"
    " rnn_tanh scaled_dot_product_attention"
)
_DRAWING = _with_in_place(
    "bernoulli binomial cauchy exponential geometric log_normal multinomial normal poisson rand"
    " rand_like randint randint_like randn randn_like random randperm rrelu rrelu_with_noise"
    " uniform _sample_dirichlet _standard_gamma"
)
DEPENDS = "results depend on the number of ranks here"
DROPOUT = "dropout masks are drawn on each rank"
_OF_PYTHON = {"random", "getrandbits"}
_DROPPING = ("drop", "stochastic_depth")  # names of functions that drop paths
# What draws for something else: parameters, samples, compilation.
_OTHER_MODULES = ("torch.nn.init", "torch.utils.data", "torch._dynamo")
_OTHER_FUNCTIONS = ("__init__", "reset_parameters", "init_weights")  # ends of names
_LIBRARIES = ("torch", "paceline", *sys.stdlib_module_names)
_FEW_WORDS = 2  # a single number
_ADVICE = {
    "randperm": "partners = session.draws.permutation()",
    "randn": "session.draws.randn(*x.shape[1:])",
    "normal": "session.draws.randn(*x.shape[1:])",
    "randint": "session.draws.randint(low, high)",
    "random": "session.draws.randint(low, high)",
    "bernoulli": "session.draws.bernoulli(p, *x.shape[1:])",
}


class RandomOperation(NamedTuple):
    """A random operation."""

    operation: str
    place: str  # line of the script
    is_dropout: bool = False


class LoopDraws:
    """Watches the first step for random operations, on rank 0 of several."""

    def __init__(
        self,
        device: torch.device,
        *,
        is_seeded: bool,  # otherwise a script may draw a number that is the same on all ranks
        # called once with the operations up to the first batch's last backward
        report: Callable[[list[RandomOperation]], None],
    ) -> None:
        self._device, self._is_seeded, self._report = device, is_seeded, report
        self._hook: Any = None  # the profile function
        self._loop: Iteration | None = None  # whose first batch is watched
        self._pending: list[RandomOperation] = []  # since the last backward
        self._found: list[RandomOperation] = []
        self._has_backward = False
        self._before: Any = None  # of the operation that is running
        self._numpy = b""

    def at_batch(self, loop: Iteration, is_ready: bool) -> None:
        """Watch the first batch of a loop, and nothing while a batch is loaded."""
        self._interrupt()
        if loop is self._loop:
            self._loop = None  # it ends, or its first batch is done
            if self._has_backward:
                self._report(list(dict.fromkeys(self._found)))
        elif is_ready and self._loop is None and loop.number == 0 and loop.with_grad:
            self._loop, self._pending = loop, []
        if is_ready:
            self.after_backward()

    def before_backward(self) -> None:
        """Count what was drawn since the last backward, and interrupt the watch."""
        if self._loop is None:
            return
        if self._is_seeded and numpy_memory() != self._numpy and sys.getprofile() is self._hook:
            self._pending.append(RandomOperation("numpy.random", ""))
        self._interrupt()
        self._has_backward = True
        self._found += self._pending
        self._pending = []

    def after_backward(self) -> None:
        """Continue the watch: a second loss of the batch may follow."""
        if self._loop is not None and sys.getprofile() is None:  # else the script is profiled
            self._numpy = numpy_memory()
            dynamo = sys.modules.get("torch._dynamo")
            # It would compile the profile function too, where it is called in a compiled one.
            self._hook = self._see if dynamo is None else dynamo.disable(self._see)
            sys.setprofile(self._hook)

    def _interrupt(self) -> None:
        if sys.getprofile() is self._hook:
            sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, function: Any) -> None:
        """Look at a call; the profile function of this thread."""
        if event == "c_call":
            self._before = None
            name = getattr(function, "__name__", "")
            if name in _OF_PYTHON:
                self._before = python_memory() if self._is_seeded else None
            elif name in _DRAWING or name in _LIKE_DROPOUT:
                self._before = self._states()
        elif event == "c_return" and self._before is not None:
            before, self._before = self._before, None
            name, has_drawn = f"random.{function.__name__}", before != python_memory()
            if isinstance(before, list):
                name, has_drawn = function.__name__, self._has_drawn(before)
            if has_drawn and (draw := _draw_of(name, frame)):
                self._pending.append(draw)

    def _states(self) -> list[Any]:
        """Return the states of torch's global generators, of the CPU and of this rank's GPU."""
        states: list[Any] = [torch.default_generator.get_state()]
        if self._device.type != "cpu":
            try:
                state = torch.get_device_module(self._device).get_rng_state(self._device)
                states.append(state.numpy().tobytes())
            except RuntimeError:  # a graph is being captured
                states.append(None)
        return states

    def _has_drawn(self, before: list[Any]) -> bool:
        """Return whether one of torch's global generators was drawn from."""
        old, *old_of_device = before
        new, *new_of_device = self._states()
        if old_of_device != new_of_device:
            return True
        if torch.equal(old, new):
            return False
        return self._is_seeded or not _are_near(old, new)


def _are_near(old: torch.Tensor, new: torch.Tensor) -> bool:
    """Return whether a Mersenne twister of torch has drawn a single number at most."""
    places = [int(state[8:12].view(torch.int32)) for state in (old, new)]
    return 0 <= places[0] - places[1] <= _FEW_WORDS


def _draw_of(operation: str, frame: FrameType) -> RandomOperation | None:
    """Return the draw that a frame made; None if it is not for the rows of a step."""
    frames: list[FrameType] = []
    around: FrameType | None = frame
    while around is not None:
        frames.append(around)
        around = around.f_back
    is_dropout = operation in _LIKE_DROPOUT
    for one in frames:
        name = one.f_code.co_name
        if name.endswith(_OTHER_FUNCTIONS) or _module_of(one).startswith(_OTHER_MODULES):
            return None
        is_dropout = is_dropout or any(word in name for word in _DROPPING)
    own = [one for one in frames if _is_of_script(one)]
    if not own:
        return None
    by_library = [one for one in frames[: frames.index(own[0])] if _module_of(one) != "random"]
    if operation.startswith("random.") and by_library:
        return None
    place = f"{os.path.basename(own[0].f_code.co_filename)}:{own[0].f_lineno}"
    return RandomOperation(operation, place, is_dropout)


def _is_of_script(frame: FrameType) -> bool:
    is_library = _module_of(frame).partition(".")[0] in _LIBRARIES
    return not is_library and "site-packages" not in frame.f_code.co_filename


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def lines_of(draws: list[RandomOperation], *, says_dropout: bool) -> Iterator[str]:
    """Yield what to say about the random operations of a step, dropout only if ``says_dropout``."""
    if says_dropout and any(draw.is_dropout for draw in draws):
        yield f"{DEPENDS}: {DROPOUT}"
    if others := [draw for draw in draws if not draw.is_dropout]:
        yield finding_of(others).render()


def finding_of(draws: list[RandomOperation]) -> Finding:
    """Return the finding for random operations that are not dropout, the first one first."""
    first, *others = draws
    kind = first.operation.partition("_")[0]  # of ``randn_like`` and ``normal_``
    advice = _ADVICE.get(kind, "session.draws.rand(*x.shape[1:])")
    return Finding(
        "loop-draws-numbers",
        f"{first.operation} draws random numbers in the training step, on each rank others",
        where=first.place or "between the first batch and its backward",
        evidence=tuple(f"also {draw.operation} {draw.place}".rstrip() for draw in others[:4]),
        why="the result depends on the number of ranks",
        fix=f"{advice}, which belongs to the rows of the batch",
        severity="hint",
    )


DROPOUTS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


class RankDependence:
    """Notes the models and random operations whose results are those of a rank's own rows."""

    def __init__(
        self,
        say: Callable[[str], None],  # prints a line on rank 0, once
        *,
        device: torch.device,
        strategy: Strategy,
    ) -> None:
        self._say, self._device = say, device
        self._syncs_norms = isinstance(strategy, DDP) and strategy.sync_batchnorm
        self._has_dropout = False
        self.parts: list[str] = []  # what was noted, as parts of the last line of a run
        # watches the first step for random operations; None when it is over
        self.draws: LoopDraws | None = None

    def note_models(self, models: Sequence[nn.Module]) -> None:
        """Say which modules depend on the number of ranks, as they are in training."""
        modules = [module for model in models for module in model.modules() if module.training]
        lines = []
        norms = sum(isinstance(module, BATCH_NORMS) for module in modules)
        if norms and not self._syncs_norms:
            lines.append("batch norm's statistics are those of a rank's own rows")
            self.parts.append(f"batch norm ({_modules(norms)})")
        drops = sum(isinstance(module, DROPOUTS) and module.p > 0 for module in modules)
        if drops:
            lines.append(DROPOUT)
            self.parts.append(f"dropout ({_modules(drops)})")
            self._has_dropout = True
        if lines:
            self._say(f"{DEPENDS}: {'; '.join(lines)}")

    def watch_draws(self, tracker: BatchTracker, *, is_seeded: bool) -> None:
        """Say what the first step draws at random, on each rank for itself.

        ``is_seeded``: the session has seeded ranks differently.
        """

        def report(draws: list[RandomOperation]) -> None:
            self.draws = tracker.on_batch = None
            places = [(one.operation, one.place) for one in draws if not one.is_dropout]
            self.parts += [f"{name} ({place})" if place else name for name, place in places]
            for line in lines_of(draws, says_dropout=not self._has_dropout):
                self._say(line)

        self.draws = LoopDraws(self._device, is_seeded=is_seeded, report=report)
        tracker.on_batch = self.draws.at_batch


def _modules(count: int) -> str:
    return "1 module" if count == 1 else f"{count} modules"
