"""Choose which batch sizes are tried, and from which on larger ones gain little. Pure.

Sizes are doubled from the script's own. On a GPU the first one that does not fit ends the search.
On CPUs the memory is the machine's, which would end other programs: what the next size needs is
estimated from the last two, and it is not tried if that is more than a share of what is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paceline.measure.intervals import Interval
from paceline.text import wording

MEMORY_SHARE = 0.6  # of the free memory that a batch may take
_KNEE = 0.95  # of the best rate: the smallest batch that reaches it is the knee
_MOST_SIZES = 10


@dataclass(frozen=True)
class BatchSize:
    """A batch size that was measured."""

    option: int  # the number that was put into the option
    samples: int  # samples of a batch on each rank, as its loader had them
    samples_per_s: Interval  # samples per second of all ranks
    used_bytes: int  # memory that the machine had less while the script ran
    gpu_bytes: int | None = None  # memory in use on the fullest GPU; None without GPUs

    @property
    def memory(self) -> str:
        """The memory that bounds the batch, in words."""
        if self.gpu_bytes is not None:
            return f"{wording.size(self.gpu_bytes)} of GPU"
        return wording.size(self.used_bytes)


def next_size(sizes: Sequence[BatchSize], *, free_bytes: int) -> tuple[int, str]:
    """Return the next number to try; 0 with the reason if there is none.

    ``sizes`` are those measured, the smallest first; not empty. ``free_bytes`` is the free memory
    of the machine before the first size.
    """
    last = sizes[-1]
    if len(sizes) >= _MOST_SIZES:
        return 0, f"{_MOST_SIZES} sizes were tried"
    if _is_flat([size.samples_per_s.value for size in sizes]):
        return 0, "larger ones were not faster"
    if estimate_bytes(sizes) > MEMORY_SHARE * free_bytes:
        return 0, f"twice as many may need more than {MEMORY_SHARE:.0%} of the free memory"
    return 2 * last.option, ""


def _is_flat(rates: Sequence[float]) -> bool:
    """Return whether two doublings in turn have gained little."""
    return len(rates) > 2 and max(rates[-2:]) * _KNEE < max(rates[:-2])


def estimate_bytes(sizes: Sequence[BatchSize]) -> float:
    """Return the memory that twice the last size needs: it grows by twice as much as before."""
    last = sizes[-1].used_bytes
    if len(sizes) < 2:
        return 2 * last
    return last + 2 * max(0, last - sizes[-2].used_bytes)


def knee(sizes: Sequence[BatchSize]) -> BatchSize:
    """Return the smallest size that is about as fast as the fastest."""
    most = max(size.samples_per_s.value for size in sizes)
    return next(size for size in sizes if size.samples_per_s.value >= _KNEE * most)


@dataclass(frozen=True)
class BatchAnswer:
    """Which batch sizes fit, and which one is the knee."""

    option: str  # the option with ``{batch}`` in it
    sizes: Sequence[BatchSize]  # what was measured, the smallest first
    end: str  # why no larger one was measured

    def to_json(self) -> dict[str, Any]:
        """Return the answer as plain data."""
        return {
            "sizes": [asdict(size) for size in self.sizes],
            "knee": asdict(knee(self.sizes)),
            "largest": asdict(self.sizes[-1]),
            "end": self.end,
        }

    def render(self) -> str:
        """Return the answer as text."""
        best = knee(self.sizes)
        words = self.option.replace("{batch}", str(best.option))
        lines = [f"{'batch':>8}{'samples a rank':>18}{'samples/s':>14}   95 % interval    memory"]
        for size in self.sizes:
            rate = size.samples_per_s
            interval = f"{rate.low:,.0f} to {rate.high:,.0f}"
            mark = "  knee" if size == best else ""
            lines.append(
                f"{size.option:>8}{size.samples:>18}{rate.value:>14,.0f}   {interval:16}"
                f"{size.memory:>8}{mark}"
            )
        largest = self.sizes[-1]
        lines += [
            "",
            f"largest batch that was tried and fits: {largest.option} ({self.end})",
            f"knee: {words}, the smallest within 5 % of the fastest",
            "note: another batch size is another training: its learning rate has to fit",
        ]
        return "\n".join(lines)
