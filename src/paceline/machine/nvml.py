"""Asks NVIDIA's management library; whatever it cannot answer is None.

Each function of NVML may be missing in the driver's version, refused to this user, or not supported by this GPU.
"""

from __future__ import annotations

import importlib
from typing import Any

_CLOSED = "permission"


class Nvml:
    """NVML, opened for as long as the ``with`` block lasts.

    Args:
        library: ``pynvml``, or what stands in for it in a test; None imports it.

    Raises:
        Exception: There is no library, no driver or no device; NVML has an exception for each.
    """

    def __init__(self, library: Any = None) -> None:
        self.library = library or importlib.import_module("pynvml")

    def __enter__(self) -> Nvml:
        self.library.nvmlInit()
        return self

    def __exit__(self, *_: object) -> None:
        self.ask("nvmlShutdown")

    def ask(self, function: str, *arguments: Any) -> Any:
        """Return what a function of NVML answers, None if it does not."""
        answer, _ = self.ask_why(function, *arguments)
        return answer

    def ask_why(self, function: str, *arguments: Any) -> tuple[Any, str]:
        """Return what a function of NVML answers, or None and why it does not."""
        try:
            answer = getattr(self.library, function)(*arguments)
        except Exception as error:  # NVMLError of any kind, or a pynvml that is older than the function
            return None, str(error)
        return answer, ""

    def handles(self) -> list[tuple[Any, str]]:
        """Return the handle of each GPU, or None and why there is none.

        A GPU that this user may not open is left out: a scheduler has given it to others, and CUDA counts the rest.
        """
        places = range(self.number("nvmlDeviceGetCount") or 0)
        answers = [self.ask_why("nvmlDeviceGetHandleByIndex", place) for place in places]
        return [(handle, why) for handle, why in answers if handle is not None or _CLOSED not in why.lower()]

    def text(self, function: str, *arguments: Any) -> str:
        """Return an answer as text, empty if there is none."""
        return decoded(self.ask(function, *arguments))

    def number(self, function: str, *arguments: Any) -> int | None:
        """Return an answer as a number, None if there is none."""
        answer = self.ask(function, *arguments)
        return answer if isinstance(answer, int) else None

    def constant(self, name: str, otherwise: int) -> int:
        """Return one of NVML's constants, which has had another name in earlier versions or none."""
        value = getattr(self.library, name, otherwise)
        return value if isinstance(value, int) else otherwise


def decoded(value: Any) -> str:
    """Return a text of NVML, which is bytes in some versions."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else ""


def bus_id(text: str) -> str:
    """Return a place on the PCI bus as the kernel writes it: NVML has eight digits of the domain, and capitals."""
    domain, colon, rest = text.strip("\0 ").lower().partition(":")
    return f"{domain[-4:].zfill(4)}:{rest}" if colon and rest.count(":") == 1 else text.lower()
