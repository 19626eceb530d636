"""Query NVIDIA's management library (NVML); unavailable answers are None.

A function of NVML may be missing in the driver's version, refused to this user, or not supported by
the GPU.
"""

from __future__ import annotations

import importlib
from typing import Any

_CLOSED = "permission"


class Nvml:
    """An NVML session, open inside the ``with`` block.

    Raises Exception if the library, the driver or a device is missing; NVML has an exception for
    each.
    """

    def __init__(
        self,
        library: Any = None,  # ``pynvml``, or a substitute in a test; None imports it
    ) -> None:
        self.library = library or importlib.import_module("pynvml")

    def __enter__(self) -> Nvml:
        self.library.nvmlInit()
        return self

    def __exit__(self, *_: object) -> None:
        self.ask("nvmlShutdown")

    def ask(self, function: str, *arguments: Any) -> Any:
        """Call a function of NVML; return None if it fails."""
        answer, _ = self.ask_why(function, *arguments)
        return answer

    def ask_why(self, function: str, *arguments: Any) -> tuple[Any, str]:
        """Call a function of NVML; return its answer, or None and the reason."""
        try:
            answer = getattr(self.library, function)(*arguments)
        except Exception as error:  # any NVMLError, or a pynvml older than the function
            return None, str(error)
        return answer, ""

    def handles(self) -> list[tuple[Any, str]]:
        """Return the handle of each GPU, or None and the reason.

        GPUs that this user may not open are omitted: a scheduler assigned them to other users, and
        CUDA counts only the rest.
        """
        places = range(self.number("nvmlDeviceGetCount") or 0)
        answers = [self.ask_why("nvmlDeviceGetHandleByIndex", place) for place in places]
        return [
            (handle, why)
            for handle, why in answers
            if handle is not None or _CLOSED not in why.lower()
        ]

    def text(self, function: str, *arguments: Any) -> str:
        """Return an answer as text; empty without one."""
        return decoded(self.ask(function, *arguments))

    def number(self, function: str, *arguments: Any) -> int | None:
        """Return an answer as a number; None without one."""
        answer = self.ask(function, *arguments)
        return answer if isinstance(answer, int) else None

    def constant(self, name: str, otherwise: int) -> int:
        """Return a constant of NVML, or ``otherwise`` if this version does not have that name."""
        value = getattr(self.library, name, otherwise)
        return value if isinstance(value, int) else otherwise


def decoded(value: Any) -> str:
    """Return a text of NVML, which is bytes in some versions."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else ""


def bus_id(text: str) -> str:
    """Return a PCI address in the kernel's notation.

    NVML writes eight digits for the domain, and capital letters.
    """
    domain, colon, rest = text.strip("\0 ").lower().partition(":")
    return f"{domain[-4:].zfill(4)}:{rest}" if colon and rest.count(":") == 1 else text.lower()
