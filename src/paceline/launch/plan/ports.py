"""Check the port to listen on before torch is imported, which takes a second or more."""

from __future__ import annotations

import errno
import socket

from paceline.errors import SetupError
from paceline.launch.plan.options import Options
from paceline.launch.plan.plan import Plan
from paceline.machine import host


def require_free(options: Options, plan: Plan) -> None:
    """Check that the port of a run on one node is free; of several nodes another one may listen."""
    port = int(plan.port.value)
    if not options.one_node or not port:
        return
    try:
        host.listen("::" if ":" in plan.host else "0.0.0.0", port).close()
    except OSError as error:
        raise (
            in_use(port) if error.errno == errno.EADDRINUSE else cannot_listen(port, error)
        ) from None


def cannot_listen(port: int, error: OSError) -> SetupError:
    """Return the error that a port may not be listened on."""
    return SetupError.of(
        "option-invalid",
        f"cannot listen on port {port}: {error.strerror}",
        where=socket.gethostname(),
        fix="ports below 1024 need privileges; choose one above",
    )


def in_use(port: int) -> SetupError:
    """Return the error that a port is taken, with who holds it."""
    holder = host.holder_of(port)
    return SetupError.of(
        "port-in-use",
        f"port {port} is held by"
        f" {holder or 'another process (of another user, so it is not visible)'}",
        where=socket.gethostname(),
        fix=(
            "end that process, or give another port; on one node leave the port out and a free"
            " one is taken"
        ),
    )
