"""Ask NCCL for its view of a hang, through its RAS socket, which NCCL 2.24 and newer have.

Protocol and layout:
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html. One line
of text is sent, ``verbose status``, and a report in sections comes back until the connection
closes.
"""

from __future__ import annotations

import re
import socket
import time

from paceline.launch.plan.option_values import split_endpoint

DEFAULT = "localhost:28028"
_ANSWER_S = 3.0  # RAS itself waits for peers that do not answer, five seconds at most


def ask(
    address: str,  # ``HOST:PORT``, the value of ``NCCL_RAS_ADDR``
) -> str:
    """Return the report; empty if nothing answers."""
    host, port = split_endpoint(address, 28028)
    parts = []
    deadline = time.monotonic() + _ANSWER_S
    try:
        with socket.create_connection((host, port), timeout=0.5) as link:
            link.sendall(b"verbose status\n")
            while (remaining_s := deadline - time.monotonic()) > 0:
                link.settimeout(remaining_s)
                part = link.recv(1 << 16)
                if not part:
                    break
                parts.append(part)
    except OSError:
        pass  # nothing listens, or the rest of the report does not come in time
    return b"".join(parts).decode(errors="replace")


def notable(
    report: str,  # as ``ask`` returned it
) -> list[str]:
    """Return the first lines of the report's errors, or else of its warnings; two at most."""
    for section in ("Errors", "Warnings"):
        match = re.search(rf"^{section}\n=+\n(.*?)(?:\n\n|\Z)", report, flags=re.M | re.S)
        section_lines = match[1].splitlines() if match else []
        lines = [" ".join(line.split()) for line in section_lines if line.strip()]
        if lines:
            return [f"NCCL RAS: {line}" for line in lines[:2]]
    return []
