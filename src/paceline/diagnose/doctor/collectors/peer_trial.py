"""Copy data between every two GPUs and verify it; ``peers`` runs this in a child that it can kill.

The process announces each copy before it begins, so that the report can name a copy that hangs.
It also ends after a fixed time, in case its parent is gone.
"""

from __future__ import annotations

import json
import signal
import time
from itertools import permutations
from typing import Any

_VERIFIED_BYTES, _ROWS = 4 << 20, 1024
_TIMED_BYTES = 64 << 20
_TIMES = 4
_LONGEST_S = 60  # longer than any timeout of the parent


def main() -> None:
    """Copy between every two GPUs visible to CUDA, in both directions.

    Before and after each copy, write a line of JSON.
    """
    import torch

    signal.alarm(_LONGEST_S)
    names = [
        _uuid(torch.cuda.get_device_properties(place)) for place in range(torch.cuda.device_count())
    ]
    # The initialization at the first use of a GPU must not look like a hang.
    for place in range(len(names)):
        torch.zeros(1, device=f"cuda:{place}").cpu()
    for one, other in permutations(range(len(names)), 2):
        if not names[one] or not names[other]:
            continue
        pair = {"from": names[one], "to": names[other]}
        print(json.dumps({**pair, "state": "begin"}), flush=True)
        try:
            result = _try(torch, one, other)
        except RuntimeError:  # out of memory, or GPUs without access: no statement about the link
            result = {"state": "not-possible"}
        print(json.dumps({**pair, **result}), flush=True)


def _uuid(properties: Any) -> str:
    text = str(getattr(properties, "uuid", ""))
    return text if not text or text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"


def _try(torch: Any, one: int, other: int) -> dict[str, Any]:
    if not torch.cuda.can_device_access_peer(one, other):
        return {"state": "not-possible"}
    pattern = torch.randint(0, 256, (_ROWS, _VERIFIED_BYTES // _ROWS), dtype=torch.uint8)
    source = pattern.to(f"cuda:{one}")
    # The copy engine copies contiguous data. For other data, a kernel writes to the other GPU, like
    # NCCL's kernels do.
    for sent, expected in ((source, pattern), (source.t(), pattern.t())):
        target = torch.zeros(expected.shape, dtype=torch.uint8, device=f"cuda:{other}")
        target.copy_(sent)
        _wait(torch, one, other)
        if not torch.equal(target.cpu(), expected):
            return {"state": "wrong-data"}
    return {"state": "ok", "gigabytes_per_s": round(_rate(torch, one, other), 1)}


def _rate(torch: Any, one: int, other: int) -> float:
    source = torch.zeros(_TIMED_BYTES, dtype=torch.uint8, device=f"cuda:{one}")
    target = torch.zeros(_TIMED_BYTES, dtype=torch.uint8, device=f"cuda:{other}")
    target.copy_(source)
    _wait(torch, one, other)
    begin = time.perf_counter()
    for _ in range(_TIMES):
        target.copy_(source)
    _wait(torch, one, other)
    return _TIMES * _TIMED_BYTES / (time.perf_counter() - begin) / 1e9


def _wait(torch: Any, one: int, other: int) -> None:
    torch.cuda.synchronize(one)
    torch.cuda.synchronize(other)


if __name__ == "__main__":
    main()
