"""Prove in a rank that a script's loss is a mean over rows: ``paceline run --prove``.

The script trains as it is, on one rank. Its first batch shows which loader it trains on. From then
on its loop gets the same batch twice, and then two parts of it, in three ways, each with the
parameters, buffers, gradients and random numbers of before. Optimizers take no step. What a
backward adds to the gradients is kept; then a part continues with the gradients of the whole batch,
so that what acts on their values (clipping, a loss scale, SAM's ascent) is the same in all passes.
A pass ends when the next batch is requested; loops that request batches ahead are followed by how
far they are ahead.

``proof_judging`` decides. The proof ends the rank. What is known is noted from the first pass on: a
script may end by itself, or fail with the rows of a part.
"""

from __future__ import annotations

import collections
import functools
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NoReturn

import torch

from paceline.launch.probe import proof_batch, proof_judging
from paceline.launch.probe.loader_trials import ServedLoop
from paceline.launch.probe.proof_batch import NotCut
from paceline.launch.probe.proof_judging import Backward, Pass, ProofFacts
from paceline.launch.probe.proof_state import Gradients, TrainingState, added
from paceline.launch.probe.random_rows import RandomRows
from paceline.rundir.proofs import NOT_JUDGED, PROVEN, UNDER_WAY, Proof
from paceline.train.data import Loader

_MOST_BACKWARDS = 256  # with one batch: a loop that takes no further one would never end


class LossProof:
    """Serves a script's training loop the passes of the proof."""

    def __init__(
        self,
        *,
        is_double: bool,  # compute in float64
        place: Callable[[], str],  # returns the line of the script that runs
        note: Callable[[Proof], None],  # called with what is known so far
        end: Callable[[Proof], NoReturn],  # called with the result; it does not return
    ) -> None:
        self._is_double, self._note, self._end = is_double, note, end
        self._process = os.getpid()  # a worker may have its own DataLoader
        self.random = RandomRows(place)  # follows operations while a pass is under way
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers of the script
        self.current: Pass | None = None  # pass that is under way; None before the first
        self.has_session = False  # the script trains with a Session
        self.weight: float | None = None  # what its next loss counts; None is its number of rows
        # Before it is known which loop trains: requests and first batch of each.
        self._begun: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        self._last: ServedLoop | None = None
        self._depth = 0  # of a loader within a loader, and a backward within a backward
        self._loader: Any = None  # on which the script trains
        self._thread = 0  # that trains
        self._batch: Any = None
        self._passes: list[Pass] = []  # in their order
        self._num_served = 0
        # Served, and not trained on; None is a batch of before the passes.
        self._waiting: collections.deque[Pass | None] = collections.deque()
        self._state: TrainingState | None = None
        self._after: list[Gradients] = []  # gradients after each backward of the whole batch
        self._num_before = 0  # backwards of the script's own first batch
        self._since_batch = 0  # backwards since a batch was taken
        self._other = ""  # a loader that was read in a pass
        self._error = 0.0  # largest difference so far

    def next_batch(self, loop: ServedLoop) -> Any:
        """Return the next batch of a loop."""
        is_own = os.getpid() == self._process and torch.is_grad_enabled()
        self._since_batch = 0
        if not is_own or self._depth:
            return next(loop.written())
        if self._trains(loop.loader):
            return self._serve()
        if self.current is not None:
            self._other = type(loop.loader).__name__
        begun = self._begun.setdefault(loop, [0])
        begun[0] += 1
        batch = self._within(next, loop.written())
        if self._loader is None:
            self._last = loop
            begun += [] if len(begun) > 1 else [self._guarded(proof_batch.kept, batch)]
        return batch

    def _within(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._depth += 1
        try:
            return function(*args, **kwargs)
        finally:
            self._depth -= 1

    def _trains(self, loader: Any) -> bool:
        """Return whether a loader is the training loader, or its successor in another epoch."""
        own = self._loader
        if own is None or loader is own:
            return own is not None
        return loader.dataset is own.dataset and type(loader) is type(own)

    def _guarded(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function of the batch; end the proof if it cannot be cut."""
        try:
            return function(*args)
        except NotCut as error:
            self._not_judged(str(error))

    def _not_judged(self, reason: str) -> NoReturn:
        self._end(Proof(NOT_JUDGED, reason, is_double=self._is_double))

    def _recognise(self, loop: ServedLoop) -> None:
        """Remember the loader whose batch had a backward, and cut the batch."""
        num_requests, self._batch = self._begun[loop]
        self._loader, self._thread = loop.loader, threading.get_ident()
        size = self._guarded(proof_batch.num_rows, self._loader, self._batch)
        whole = list(range(size))
        parts = chain(*self._guarded(proof_batch.divisions, size))
        self._passes = [Pass(rows) for rows in (whole, whole, *parts)]
        self._note(Proof(UNDER_WAY, "the script has ended after its first batch"))
        self._waiting.extend([None] * (num_requests - 1))

    def _serve(self) -> Any:
        """Return the batch of the next pass; the pass of the batch before has ended."""
        if threading.get_ident() != self._thread:
            self._not_judged("its batches are read by another thread than the one that trains")
        if self.current is not None:
            self._end_pass(self.current)
        served = self._passes[min(self._num_served, len(self._passes) - 1)]
        self._num_served += 1
        self._waiting.append(served)
        self.current = self._waiting.popleft()
        if self.current is not None:
            self._begin_pass(self.current)
        if isinstance(self._loader, Loader):  # never ahead
            _tell_rows(self._loader, len(served.rows))
        size = len(self._passes[0].rows)
        return proof_batch.cut(self._batch, size, served.rows, is_double=self._is_double)

    def _begin_pass(self, one: Pass) -> None:
        whole = self._passes[0]
        words = f"{len(one.rows)} of its {len(whole.rows)} rows"
        reason = f"the script has ended in a pass over its first batch, with {words}"
        self._note(Proof(UNDER_WAY, reason, is_double=self._is_double))
        if self._state is None:
            self._state = self._keep_state()
        self._state.restore()
        self.random.begin(len(whole.rows), one.rows, records=one is whole)

    def _keep_state(self) -> TrainingState:
        """Keep what each pass begins with, in float64 if that is requested."""
        state = TrainingState(list(self.optimizers))
        if self._is_double:
            torch.set_default_dtype(torch.float64)
            state.to_double()
            self.random.is_double = True
        state.keep()
        self.random.__enter__()  # for good: the rank ends in it
        return state

    def _end_pass(self, one: Pass) -> None:
        assert self._state is not None
        self.random.end()
        one.statistics = self._state.statistics()
        if self._state.has_drawn_elsewhere():
            self.random.doubt = self.random.doubt or "what Python's or NumPy's generator has drawn"
        if one is self._passes[1]:
            self._require_repeated()
        for number in range(2, len(self._passes), 2):
            if one is self._passes[number + 1]:
                self._judge(self._passes[number : number + 2], self._state.names)

    def _require_repeated(self) -> None:
        reason = proof_judging.why_not_repeated(self._passes[0], self._passes[1], self._num_before)
        others = f"; batches of another loader ({self._other}) are used with it"
        if reason:
            self._not_judged(reason + (others if self._other else ""))

    def _judge(self, parts: Sequence[Pass], names: Sequence[str]) -> None:
        """Judge a division whose passes are complete; end the proof if that suffices."""
        facts = ProofFacts(names, self._is_double, self.random.doubt, self.has_session)
        proof = proof_judging.judge(self._passes[1], parts, facts)
        self._error = max(proof.error, self._error)
        if proof.state != PROVEN or parts[1] is self._passes[-1]:
            self._end(replace(proof, error=self._error))

    def backward(self, run: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Run a backward, and keep what it adds to the gradients."""
        self._since_batch += 1
        if self._since_batch > _MOST_BACKWARDS:
            self._not_judged(f"it makes over {_MOST_BACKWARDS} backwards without another batch")
        if self._depth or os.getpid() != self._process:
            run(*args, **kwargs)
        elif self.current is not None and self._state is not None:
            call = functools.partial(self._within, run, *args, **kwargs)
            self._observe(self.current, self._state, call)
        else:
            self._within(run, *args, **kwargs)
            if self._loader is None and self._last is not None:
                self._recognise(self._last)
            self._num_before += self._loader is not None and not self._num_served

    def _observe(self, one: Pass, state: TrainingState, run: Callable[[], None]) -> None:
        """Run a backward of a pass."""
        if self.random.collective:
            self._not_judged(f"the loss is computed with a collective ({self.random.collective})")
        place, before = self.random.last_place, state.gradients()
        run()
        after = state.gradients()
        change = added(before, after, rounded=self.random.coarsest)
        one.backwards.append(Backward(change, self.weight, place))
        if one is self._passes[0]:
            self._after.append(after)
        elif len(one.backwards) <= len(self._after):
            state.set_gradients(self._after[len(one.backwards) - 1])


def _tell_rows(loader: Loader, num_rows: int) -> None:
    """Let paceline's own loader know the rows of the batch that it seems to have yielded."""
    iteration = loader.iteration
    if iteration is not None and iteration.rows is not None:
        iteration.rows = iteration.rows._replace(
            of_rank=num_rows, of_batch=num_rows, of_group=num_rows, ends_group=True
        )
        iteration.num_batches, iteration.live = 1, True
