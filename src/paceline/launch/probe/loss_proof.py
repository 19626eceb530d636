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
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import torch

from paceline.launch.probe import proof_batch, proof_judging
from paceline.launch.probe.loader_trials import ServedLoop
from paceline.launch.probe.proof_batch import NotCut
from paceline.launch.probe.proof_judging import Backward, Facts, Pass
from paceline.launch.probe.proof_state import Gradients, TrainingState, added
from paceline.launch.probe.random_rows import RandomRows
from paceline.rundir.proofs import NOT_JUDGED, PROVEN, UNDER_WAY, Proof
from paceline.train.data import Loader

_BEFORE = ""  # a batch that was requested before the first pass
_WHOLE, _AGAIN = "whole", "again"
_DIVISIONS = (("one", "rest of one"), ("two", "rest of two"), ("three", "rest of three"))
_PASSES = (_WHOLE, _AGAIN, *(name for division in _DIVISIONS for name in division))


class LossProof:
    """Serves a script's training loop the passes of the proof.

    Args:
        is_double: Whether to compute in float64.
        place: Returns the line of the script that runs.
        note: Called with what is known so far.
        end: Called with the result; it does not return.
    """

    def __init__(
        self,
        *,
        is_double: bool,
        place: Callable[[], str],
        note: Callable[[Proof], None],
        end: Callable[[Proof], NoReturn],
    ) -> None:
        self._is_double, self._note, self._end = is_double, note, end
        self._process = os.getpid()  # a worker may have its own DataLoader
        self.random = RandomRows(place)
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._requested: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._first: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._last: ServedLoop | None = None  # of which a batch was taken last
        self._loader: Any = None  # the loader that the script trains on
        self._is_fetching = False  # a loader may read another one
        self._batch: Any = None
        self._size = 0
        self._parts: dict[str, proof_batch.Rows] = {}
        self._num_served = 0
        self._waiting: collections.deque[str] = collections.deque()  # served, and not trained on
        self._state: TrainingState | None = None
        self.current = _BEFORE  # the pass
        self._passes: dict[str, Pass] = {}
        self._error = 0.0  # largest difference so far
        self._after: list[Gradients] = []  # gradients after each backward of the whole batch
        self._num_before = 0  # backwards of the script's own first batch
        self._has_ended_before = False
        self._other = ""  # a loader that was read in a pass
        self._depth = 0  # of a backward within a backward
        self.has_session = False  # whether the script trains with a Session
        self.weight: float | None = None  # that the script gives to the next backward

    def next_batch(self, loop: ServedLoop) -> Any:
        """Return the next batch of a loop."""
        is_own = os.getpid() == self._process and torch.is_grad_enabled()
        if not is_own or self._is_fetching:
            return next(loop.written())
        if self._loader is not None and self._trains(loop.loader):
            return self._serve(loop.loader)
        self._requested[loop] = self._requested.get(loop, 0) + 1
        batch = self._fetch(loop)
        if self.current:
            self._other = type(loop.loader).__name__
        if self._loader is None:
            self._last = loop
            if loop not in self._first:
                self._first[loop] = self._guarded(proof_batch.kept, batch)
        return batch

    def _fetch(self, loop: ServedLoop) -> Any:
        self._is_fetching = True
        try:
            return next(loop.written())
        finally:
            self._is_fetching = False

    def _trains(self, loader: Any) -> bool:
        """Return whether a loader is the training loader, or its successor in another epoch."""
        own = self._loader
        if loader is own:
            return True
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
        self._loader, self._batch = loop.loader, self._first[loop]
        self._size = self._guarded(proof_batch.num_rows, self._loader, self._batch)
        self._guarded(proof_batch.require_rows, self._batch, self._size)
        divisions = self._guarded(proof_batch.divisions, self._size)
        whole = list(range(self._size))
        parts = [part for division in divisions for part in division]
        self._parts = dict(zip(_PASSES, (whole, whole, *parts), strict=True))
        self._note(Proof(UNDER_WAY, "the script has ended after its first batch"))
        self._waiting.extend([_BEFORE] * (self._requested[loop] - 1))

    def _serve(self, loader: Any) -> Any:
        """Return the batch of the next pass; the pass of the batch before has ended."""
        if self.current:
            self._end_pass()
        name = _PASSES[min(self._num_served, len(_PASSES) - 1)]
        self._num_served += 1
        self._waiting.append(name)
        self._has_ended_before = True
        self.current = self._waiting.popleft()
        if self.current:
            self._begin_pass()
        rows = self._parts[name]
        if isinstance(loader, Loader):
            _tell_rows(loader, len(self._parts[self.current or name]))
        return proof_batch.cut(self._batch, self._size, rows, is_double=self._is_double)

    def _begin_pass(self) -> None:
        rows = self._parts[self.current]
        words = "the whole batch" if len(rows) == self._size else f"{len(rows)} of its rows"
        reason = f"the script has ended in a pass over {words}"
        self._note(Proof(UNDER_WAY, reason, is_double=self._is_double))
        if self._state is None:
            self._state = self._keep_state()
        self._state.restore()
        self._passes[self.current] = Pass(len(rows), [], {})
        self.random.begin(self._size, rows, records=self.current == _WHOLE)

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

    def _end_pass(self) -> None:
        assert self._state is not None
        self.random.end()
        self._passes[self.current].statistics = self._state.statistics()
        if self._state.has_drawn_elsewhere():
            self.random.doubt = self.random.doubt or "what Python's or NumPy's generator has drawn"
        if self.current == _AGAIN:
            self._require_repeated()
        for number, division in enumerate(_DIVISIONS):
            if self.current == division[1]:
                self._judge(self._state, number)

    def _require_repeated(self) -> None:
        one, again = self._passes[_WHOLE], self._passes[_AGAIN]
        reason = proof_judging.why_not_repeated(one, again, self._num_before or None)
        if reason and self._other:
            reason += f"; batches of another loader ({self._other}) are used with it"
        if reason:
            self._not_judged(reason)

    def _judge(self, state: TrainingState, number: int) -> None:
        """Judge the division whose passes are complete; end the proof if that suffices."""
        facts = Facts(
            names=state.names,
            is_double=self._is_double,
            doubt=self.random.doubt,
            has_session=self.has_session,
        )
        parts = [self._passes[name] for name in _DIVISIONS[number]]
        proof = proof_judging.judge(self._passes[_AGAIN], parts, facts)
        self._error = max(proof.error, self._error)
        if proof.state != PROVEN or self.current == _PASSES[-1]:
            self._end(replace(proof, error=self._error))

    def backward(self, run: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Run a backward, and keep what it adds to the gradients."""
        if self._depth or os.getpid() != self._process:
            run(*args, **kwargs)
            return
        self._depth += 1
        try:
            if self.current and self._state is not None:
                self._observe(self._state, functools.partial(run, *args, **kwargs))
            else:
                run(*args, **kwargs)
                self._count_before()
        finally:
            self._depth -= 1

    def _count_before(self) -> None:
        if self._loader is None and self._last is not None:
            self._recognise(self._last)
        if self._loader is not None and not self._has_ended_before:
            self._num_before += 1

    def _observe(self, state: TrainingState, run: Callable[[], None]) -> None:
        """Run a backward of a pass."""
        if self.random.collective:
            self._not_judged(f"the loss is computed with a collective ({self.random.collective})")
        place, weight = self.random.last_place, self.weight
        before = state.gradients()
        run()
        after = state.gradients()
        change = added(before, after)
        if self.random.coarsest is not None:
            change = {number: each.to(self.random.coarsest) for number, each in change.items()}
        backwards = self._passes[self.current].backwards
        backwards.append(Backward(change, weight, place))
        if self.current == _WHOLE:
            self._after.append(after)
        elif len(backwards) <= len(self._after):
            state.set_gradients(self._after[len(backwards) - 1])

    def note_collective(self) -> None:
        """Note that the script has gathered rows of all ranks."""
        if self.current:
            self.random.collective = f"session.gather in {self.random.last_place}"


def _tell_rows(loader: Loader, num_rows: int) -> None:
    """Let paceline's own loader know the rows of the batch that it seems to have yielded."""
    iteration = loader.iteration
    if iteration is not None and iteration.rows is not None:
        iteration.rows = iteration.rows._replace(
            of_rank=num_rows, of_batch=num_rows, of_group=num_rows, ends_group=True
        )
        iteration.num_batches, iteration.live = 1, True
