"""Decide in which run folder a Session keeps its checkpoints and logs, and claim that folder."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from paceline import env
from paceline.errors import Finding, Notice, RunError, UsageError
from paceline.rundir import identity, lease, lease_file, ownership
from paceline.rundir.files import RunDir
from paceline.rundir.identity import Training
from paceline.rundir.lease import Lease
from paceline.text import terminal
from paceline.train import runtime
from paceline.world import World

_ANSWER = timedelta(minutes=10)  # rank 0 may wait a minute for another run to end


@dataclass
class _Process:
    """The Sessions of this process."""

    num_places: int = 0  # number of Sessions made so far
    num_default: int = 0  # number of Sessions made without a folder
    # for each folder, the number of the Session that trains in it; kept after its end
    users: dict[Path, int] = field(default_factory=dict)


_process = _Process()


def reset() -> None:
    """Forget the Sessions of this process, as in a new process; for tests."""
    _process.num_default = 0
    _process.users.clear()


class Refused(UsageError, SystemExit):
    """A refused folder; if uncaught, the script ends with status 2 and without our traceback."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding)
        self.code = self.exit_status


class SessionFolder:
    """The run folder of one Session.

    Nothing is written before the Session saves, restores or trains after a restore. A Session that
    only reads, for example to evaluate, may read the folder of a living run. Rank 0 decides the
    folder, because the script's arguments may differ between ranks: None means the launcher's
    folder or a default; a RunDir shares the folder of another Session on purpose.
    """

    def __init__(self, run_dir: str | os.PathLike[str] | RunDir | None, *, world: World) -> None:
        lease.prepare()
        _process.num_places += 1
        self._number, self._world = _process.num_places, world
        self._num_exchanges = 0
        self._number_in_world = runtime.number_of_call("place")
        self._is_default = run_dir is None
        self._is_shared = isinstance(run_dir, RunDir)
        _process.num_default += self._is_default
        session = _process.num_default if self._is_default else 1
        self._training = identity.of_command(
            sys.argv[0],
            sys.argv[1:],
            env.snapshot(),
            folder=identity.working_folder(),
            session=session,
        )
        folder = self._choose(run_dir)
        # the same on all ranks
        self.run_dir = RunDir(Path(self._of_main(lambda: str(folder))))
        self._is_launched = _is_in_launched(self.run_dir.root)
        self._is_decided = False
        self._refused: Finding | None = None
        self._lease: Lease | None = None

    def look(self) -> None:
        """Claim the folder before its latest checkpoint is read; reading a living run's is allowed.

        A collective, like ``claim``.
        """
        if not self._of_main(lambda: "there" if self.run_dir.root.is_dir() else ""):
            return  # an absent folder cannot change
        self._decide()  # a refusal is raised later, when the Session trains or saves

    def is_trusted(self) -> bool:
        """Return whether the folder's checkpoints are unpickled, whatever their classes.

        The folder is, if the script or ``PACELINE_RUN_DIR`` names it. Else it was found, and nobody
        else may have put checkpoints there.
        """
        if not self._is_default or env.read(env.RUN_DIR) is not None:
            return True
        root = self.run_dir.root
        fix = f"export PACELINE_RUN_DIR={shlex.quote(str(root))}, if you trust it"
        for folder in (root, self.run_dir.checkpoints):
            finding = ownership.judge(folder, fix=fix, trusts_group=True)
            if finding is not None:
                if identity.has_checkpoints(root):
                    why = "only the plain data of its checkpoints is read: pickles run code"
                    self.inform(replace(finding, why=why, severity="warning"))
                return False
        return True

    def claim(self) -> None:
        """Make the folder this Session's own, before it trains or saves; a collective.

        Raises UsageError if the folder belongs to a living run, another array element or another
        Session of this process.
        """
        self._decide()
        if self._refused is None:
            return
        if env.read(env.RUN_TOKEN) is not None:
            raise UsageError(self._refused)  # the launcher shows it
        self.inform(self._refused)
        raise Refused(self._refused)

    def _decide(self) -> None:
        """Find out once whether the folder belongs to this Session."""
        if not self._is_decided:
            refused = self._of_main(self._try_to_claim)
            self._is_decided = True
            self._refused = Finding.from_json(json.loads(refused)) if refused else None

    def require_own(self) -> None:
        """Check on rank 0 before a commit that no other run has taken the folder.

        Raises RunError if another run has taken the folder.
        """
        token = self._lease.owner.token if self._lease else env.read(env.RUN_TOKEN)
        launched = Path(env.read(env.RUN_DIR) or ".")
        leased = launched if self._is_launched else self.run_dir.root
        owner = lease.new_owner(leased, token) if token else None
        if owner is not None:
            raise RunError(lease.taken_over(self.run_dir.root, owner))

    def release_soon(self) -> None:
        """Release the lease; called by the garbage collector."""
        if self._lease is not None:
            self._lease.release_soon()

    def say_what_is_beside(self) -> None:
        """Report on rank 0 a similar folder that has checkpoints, with the command to resume it."""
        if not self._is_default or self._is_launched or self._world.rank != 0:
            return
        siblings = identity.siblings(self._training)
        if siblings:
            self.inform(
                _beside(
                    self.run_dir.root, siblings[0], self._training, launcher=self._world.launcher
                )
            )

    def inform(self, what: Notice | Finding) -> None:
        """Print a notice or a warning, on rank 0."""
        if self._world.rank == 0:
            terminal.show(what.render(), sys.stderr)

    def _choose(self, run_dir: str | os.PathLike[str] | RunDir | None) -> Path:
        if isinstance(run_dir, RunDir):
            return run_dir.root
        if run_dir is not None:
            return Path(run_dir)
        number = self._training.session
        if number > 1 and self._world.rank == 0:
            terminal.say(
                f"Session {number} of this process has its own run folder; Session(run_dir=...)"
                " chooses one"
            )
        named = env.read(env.RUN_DIR)
        if named is None:
            return identity.choose_folder(self._training)
        return Path(named) / identity.of_session(number).lstrip("-") if number > 1 else Path(named)

    def _try_to_claim(self) -> str:
        """Claim the folder on rank 0; return the refusing finding as JSON, or an empty string."""
        finding = self._conflict()
        if finding is None and not self._is_launched:
            try:
                self._lease = self._take()
            except UsageError as error:
                finding = error.finding
        if finding is not None:
            return json.dumps(finding.to_json())
        if not self._is_shared:
            _process.users[self._key] = self._number
        return ""

    def _take(self) -> Lease | None:
        root = self.run_dir.root
        recorded = identity.read(self.run_dir)
        owner = lease_file.this_process(secrets.token_hex(8), element=self._training.element)
        try:
            root.mkdir(parents=True, exist_ok=True)
            lease_of_folder = lease.take(root, owner, say=terminal.say)
        except OSError as error:
            terminal.say(f"the run folder {root} cannot be written: {error.strerror}")
            return None
        if recorded is not None and (lines := identity.differences(recorded, self._training)):
            self.inform(Notice(f"{root} is continued by another command", tuple(lines)))
        identity.record(self.run_dir, self._training)
        return lease_of_folder

    @property
    def _key(self) -> Path:
        return Path(os.path.realpath(self.run_dir.root))

    def _conflict(self) -> Finding | None:
        root = self.run_dir.root
        if not self._is_shared and _process.users.get(self._key, self._number) != self._number:
            return _of_other_session(root)
        return identity.conflict(root, identity.read(self.run_dir), self._training)

    def _of_main(self, work: Callable[[], str]) -> str:
        """Return what ``work`` returns on rank 0, on all ranks; a collective.

        Checkpoints in that folder are unpickled, so the answer does not go through the store.
        """
        if self._world.world_size == 1:
            return work()
        self._num_exchanges += 1
        store = runtime.store().underlying_store
        key = f"paceline/place/{self._number_in_world}/{self._num_exchanges}"
        answer = b""
        if self._world.rank == 0:
            answer = work().encode()
            store.set(key, "")
        # Before the collective, whose limit may be shorter. Whoever else writes it begins it early.
        store.wait([key], _ANSWER)
        return runtime.bytes_of(0, answer).decode()


def _of_other_session(folder: Path) -> Finding:
    return Finding(
        "run-folder-of-other-training",
        f"another Session of this process trains in {folder}",
        where=f"Session(run_dir={str(folder)!r})",
        why=(
            "this Session would load the other one's model: a fold would be evaluated on data that"
            " it trained on"
        ),
        fix=(
            'Session(run_dir="fold-2"), one for each; or Session(run_dir=first.run_dir) to continue'
            " that training"
        ),
    )


def _beside(
    folder: Path, sibling: tuple[Path, Training | None], mine: Training, *, launcher: str
) -> Notice:
    """Return the notice that another run of the script has checkpoints, and how to continue it."""
    path, owner = sibling
    lines = ["saved by an earlier version: its arguments are unknown"]
    if owner:
        lines = identity.differences(owner, mine)
    start = f"PACELINE_RUN_DIR={shlex.quote(str(path))}"
    typed = shlex.join(sys.orig_argv) if launcher == "none" and mine.script != "session" else ""
    command = f"{start} {typed}" if typed else f"export {start}, then start it as before"
    return Notice(
        f"this training starts from zero in {folder}; {path} has checkpoints of the same script",
        tuple(f"differs in: {line}" for line in lines),
        f"to continue those: {command}",
    )


def _is_in_launched(folder: Path) -> bool:
    """Whether a folder is in that of ``paceline run``, whose launcher owns it for all ranks."""
    of_launcher = env.read(env.RUN_DIR)
    if of_launcher is None or env.read(env.RUN_TOKEN) is None:
        return False
    return Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(of_launcher))
