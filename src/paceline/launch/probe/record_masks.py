"""Take dropout out of a run whose values are compared, and record its masks.

Masks are random, so with dropout no value is that of one process. Each dropout of torch draws its
mask as ever, from the same random numbers, and passes its input on as it is.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import random
import sys
from collections.abc import Callable
from typing import Any

import torch

from paceline.launch.probe.value_sums import local, sums_of
from paceline.machine import accelerator

_FUNCTIONS = (
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
)
_MOST_MASKS = 1000  # of a period


def generator_states() -> bytes:
    """Return a hash of the states of all random generators that a forward may draw from."""
    states = hashlib.blake2b(torch.get_rng_state().numpy().tobytes(), digest_size=16)
    states.update(repr(random.getstate()).encode())
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None:
        states.update(repr(numpy.get_state()[1:3]).encode())
    module = accelerator.module_in_use()
    if module is not None:
        states.update(module.get_rng_state().numpy().tobytes())
    return states.digest()


class Masks:
    """The masks of a period."""

    def __init__(
        self,
        owner: Callable[[], str],  # name of the module that runs; empty if none is recorded
    ) -> None:
        self._owner = owner
        self._masks: list[tuple[str, list[float], str]] = []
        self.drawn: list[bytes] = []  # states of random generators after each mask

    def taken(self) -> list[tuple[str, list[float], str]]:
        """Return module, sums of the input, and mask of each dropout since the last call."""
        masks, self._masks = self._masks, []
        return masks

    def note(self, draw: Callable[[Any], Any], values: Any) -> None:
        """Draw the mask that a dropout of some values would have, and record it."""
        with torch.no_grad():
            mask = draw(torch.ones_like(values.detach()))
        owner = self._owner()
        if not owner:
            return
        self.drawn.append(generator_states())
        if len(self._masks) < _MOST_MASKS:
            bits = local(mask).ne(0).cpu().contiguous().numpy().tobytes()
            digest = hashlib.blake2b(bits, digest_size=8).hexdigest()
            self._masks.append((owner, sums_of(values).tolist(), digest))


Note = Callable[[Callable[[Any], Any], Any], None]  # ``Masks.note``


def neutralise(note: Note) -> None:
    """Make every dropout of torch pass its input on."""
    functional: Any = torch.nn.functional
    for name in _FUNCTIONS:
        setattr(functional, name, _neutral(getattr(functional, name), note))
    attention = functional.scaled_dot_product_attention
    dropout = functional.dropout.__wrapped__

    @functools.wraps(attention)
    def neutral_attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if dropout_p > 0 and not torch.compiler.is_compiling():
            scores = query[..., :1] * key[..., 0].unsqueeze(-2)
            note(lambda ones: dropout(ones, dropout_p), scores)
        return attention(query, key, value, attn_mask, 0.0, *args, **kwargs)

    functional.scaled_dot_product_attention = neutral_attention


def _neutral(function: Callable[..., Any], note: Note) -> Callable[..., Any]:
    """Return a dropout that draws a mask, and changes nothing."""
    trains: bool = inspect.signature(function).parameters["training"].default

    @functools.wraps(function)
    def neutral(
        input: Any,  # the name that torch gives it
        p: float = 0.5,
        training: bool = trains,
        inplace: bool = False,
    ) -> Any:
        if not training or not 0 < p < 1:
            return function(input, p, training, inplace)
        if not torch.compiler.is_compiling():
            note(lambda ones: function(ones, p, True, False), input)
        # Not the same tensor: what follows may change the result in place.
        return input if inplace else input.clone()

    return neutral
