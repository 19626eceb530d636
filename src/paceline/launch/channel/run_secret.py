"""Obtain the run's secret, and refuse nodes that do not have it.

The secret is given (``--secret-file``, or a variable that ``paceline submit`` passes through
Slurm). Otherwise the head creates one in the folder of the nodes' notes, in a file that only this
user can read. The file is named after the run's token, which the store holds, so nodes find it
before they know the run folder.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import secrets
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paceline import env
from paceline.errors import Finding, Notice, RunError, SetupError
from paceline.launch.channel.reachability import public_form
from paceline.launch.plan.options import Options
from paceline.machine.signing import Message, Signing, sign, verify
from paceline.rundir import owned
from paceline.rundir.files import read_secret, write_secret

GIVEN, SHARED = "given", "shared"
_LEAST = 16  # characters
_KEY = "identity"
# Beginnings of the types of file systems that several machines see.
_OF_NETWORKS = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb", "fuse.sshfs", "wekafs")


def given(options: Options) -> bytes:
    """Return the secret that this node was given; empty if none was given."""
    text, where = options.secret, env.RUN_SECRET
    if options.secret_file is not None:
        where = f"--secret-file {options.secret_file}"
        try:
            text = read_secret(Path(options.secret_file))
        except (OSError, UnicodeDecodeError) as error:
            raise SetupError(_unusable(options.secret_file, error)) from None
    text = text.strip()
    if (text or options.secret_file is not None) and len(text) < _LEAST:
        raise SetupError.of(
            "option-invalid",
            f"the run's secret has {len(text)} characters; it needs at least {_LEAST}",
            where=where,
            fix="openssl rand -hex 32",
        )
    return text.encode()


def _unusable(path: str, error: Exception) -> Finding:
    why = str(error)
    if isinstance(error, OSError) and error.strerror:
        why = error.strerror
    fix = "a file with one line: openssl rand -hex 32"
    if isinstance(error, PermissionError):
        fix = f"chmod 600 {path}"
    what = f"the file of the run's secret cannot be used: {why}"
    return Finding("option-invalid", what, where=f"--secret-file {path}", fix=fix)


class SharedFile:
    """The secret that the head creates for the nodes that share its folder."""

    def __init__(self, folder: Path, token: str) -> None:
        self._path = folder / f"{public_form(token)}.secret"
        self._new_folders: list[Path] = []  # the innermost first

    @property
    def is_on_network(self) -> bool:
        """Whether other machines see the folder."""
        import psutil

        kinds = {disk.mountpoint: disk.fstype for disk in psutil.disk_partitions(all=True)}
        mounts = [mount for mount in kinds if self._path.absolute().is_relative_to(mount)]
        return kinds.get(max(mounts, key=len, default=""), "").startswith(_OF_NETWORKS)

    def create(self) -> bytes:
        """Write a new secret; return an empty one if the folder is not writable."""
        text = secrets.token_hex(32)
        try:
            self._new_folders = [folder for folder in self._path.parents if not folder.exists()]
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with owned.folder(self._path.parent) as folder:
                write_secret(folder / self._path.name, text)
        except OSError:
            return b""
        atexit.register(self.remove)
        return text.encode()

    def read(self) -> bytes:
        """Return the head's secret; empty without a file that only this user can read."""
        with (
            contextlib.suppress(OSError, UnicodeDecodeError),
            owned.folder(self._path.parent) as folder,
        ):
            return read_secret(folder / self._path.name).encode()
        return b""

    def remove(self) -> None:
        """Remove the file: no node joins from now on."""
        atexit.unregister(self.remove)
        with contextlib.suppress(OSError):
            with owned.folder(self._path.parent) as folder:
                owned.delete(folder / self._path.name)
            for new in self._new_folders:  # fails for a folder with other files
                new.rmdir()


def of_head(
    options: Options, identity: Mapping[str, Any], mine: bytes, shared: SharedFile
) -> tuple[dict[str, Any], bytes]:
    """Return the identity that the head publishes, and the run's secret; empty without a secret.

    The head creates a secret if the roll call shows whether all nodes have found it, or if nodes
    that torch admits later find it on a network's file system.
    """
    if mine:
        return signed_identity(identity, mine, GIVEN), mine
    is_fixed = options.min_nodes == options.max_nodes
    may_share = options.max_nodes > 1 and (is_fixed or shared.is_on_network)
    secret = shared.create() if may_share and not options.no_check else b""
    return signed_identity(identity, secret, SHARED), secret


def signing(
    secret: bytes, identity: Mapping[str, Any], *, inform: Callable[[Notice], None]
) -> Signing:
    """Return how this launcher signs, and what it prints when it ignores a message."""

    def warn(kind: str) -> None:
        inform(
            Notice(
                f"a message in the run's store is ignored: nobody of this run has signed {kind}",
                details=("some other program writes into it, or repeats an older message",),
                advice="the run continues; who may reach its port: docs/guides/trust.md",
            )
        )

    return Signing(secret, token=str(identity["token"]), on_ignored=warn)


def signed_identity(identity: Mapping[str, Any], secret: bytes, source: str) -> dict[str, Any]:
    """Return the identity of a run with the head's signature."""
    values = {**identity, "secret": source if secret else ""}
    return {**values, "signature": _signature(values, secret)} if secret else values


def _signature(values: Mapping[str, Any], secret: bytes) -> str:
    message = Message("head", 0, _unsigned_content(values))
    return sign(secret, str(values["token"]), _KEY, message).partition(b"\n")[0].decode()


def _unsigned_content(values: Mapping[str, Any]) -> bytes:
    return json.dumps({**values, "signature": ""}, sort_keys=True).encode()


def of_run(identity: Mapping[str, Any], mine: bytes, shared: SharedFile, *, place: str) -> bytes:
    """Return the secret that this node shares with the head; empty without a common secret.

    ``place`` is the ``HOST:PORT`` of the store. Raises RunError if only one of this node and the
    head was given a secret, or their secrets differ.
    """
    head_was_given = identity.get("secret") == GIVEN
    if bool(mine) != head_was_given:
        without = f"the head on {identity['host']}" if mine else _this_node()
        what = f"{without} was not given the run's secret, and the other was"
        raise RunError(_differs(what, place))
    secret = mine or shared.read()
    if secret and not _is_signed(identity, secret):
        what = (
            f"the head on {identity['host']} does not have this node's secret, or somebody has"
            " changed what it wrote"
        )
        raise RunError(_differs(what, place))
    return secret


def _is_signed(identity: Mapping[str, Any], secret: bytes) -> bool:
    written = str(identity.get("signature", "")).encode() + b"\n" + _unsigned_content(identity)
    return verify(secret, str(identity["token"]), _KEY, written) is not None


def lost(place: str) -> Finding:
    """Return the finding that a late node cannot read the secret of a run that signs."""
    return _differs(
        f"the nodes of this run sign what they write, and {_this_node()} cannot read their secret",
        place,
    )


def _this_node() -> str:
    return f"this node ({socket.gethostname()})"


def _differs(what: str, place: str) -> Finding:
    return Finding(
        "run-secret-differs",
        what,
        where=place,
        why="one node would ignore what the other writes into the run's store",
        fix=(
            f"the same --secret-file on every node, or the same {env.RUN_SECRET}, or neither"
            " anywhere"
        ),
    )
