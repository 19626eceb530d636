"""Read what is known about this user and this host, and must not be in a bundle."""

from __future__ import annotations

import os
import pwd
import socket
from pathlib import Path

from paceline import env
from paceline.diagnose.bundle.redaction import Known
from paceline.diagnose.variables.setting import SECRET
from paceline.text.secret_texts import is_secret

_USER_VARIABLES = ("USER", "LOGNAME", "SUDO_USER", "SLURM_JOB_USER")
_LEAST_FULL_NAME = 5


def known() -> Known:
    """Return the names of this user and host, and the secret values of the environment."""
    variables = env.snapshot()
    secrets = [
        value for name, value in variables.items() if SECRET.search(name) and is_secret(name, value)
    ]
    users = [variables.get(name, "") for name in _USER_VARIABLES]
    homes = [variables.get("HOME", "")]
    try:
        account = pwd.getpwuid(os.getuid())
    except KeyError:  # in a container, whose users the machine does not know
        account = None
    if account is not None:
        full_name = account.pw_gecos.partition(",")[0]
        users += [account.pw_name, full_name if len(full_name) >= _LEAST_FULL_NAME else ""]
        homes.append(account.pw_dir)
    homes += [os.path.realpath(home) for home in homes if home]
    host = socket.gethostname()
    hosts = (host, host.partition(".")[0])
    return Known(
        tuple(filter(None, secrets)),
        tuple(filter(None, users)),
        tuple(home for home in homes if len(Path(home).parts) > 1),
        tuple(filter(None, hosts)),
    )
