"""What runs in a rank: jobs, each in the surroundings of the test that it belongs to.

pytest chooses the names under which it imports test modules, and rewrites their assertions. A rank
imports the same file under the same name, with pytest's own rewriting, so that functions can be
pickled by name and a failed assertion is explained as usual.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import random
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paceline import env
from paceline.launch.monitor.position import shown_path
from paceline.launch.monitor.proof import Call
from paceline.launch.probe import stack_responder
from paceline.machine.user_code import is_users
from paceline.testing import faults
from paceline.testing.job import (
    BARE,
    FAILED,
    RETURNED,
    SKIPPED,
    VARIABLES,
    XFAILED,
    ModuleSource,
    PerRank,
    RankChannel,
    RankJob,
    RankOutcome,
    RankStart,
    RankWarning,
    pack,
    unpack,
)

_HOOK = "AssertionRewritingHook"  # loader of pytest that rewrites assertions


def describe(names: Iterable[str]) -> tuple[ModuleSource, ...]:
    """Return the modules that ranks cannot import by name alone, each after its packages.

    Those are the user's; unknown ones and those of installed packages are left out.
    """
    sources: dict[str, ModuleSource] = {}
    for name in names:
        module = sys.modules.get(name)
        if module is None or not is_users(getattr(module, "__file__", None) or "<built-in>"):
            continue
        for prefix in _prefixes(name):
            if prefix in sys.modules and prefix not in sources:
                sources[prefix] = _source(prefix, sys.modules[prefix])
    return tuple(sources.values())


def _prefixes(name: str) -> Iterator[str]:
    """Return ``a``, ``a.b`` and ``a.b.c`` for ``a.b.c``."""
    parts = name.split(".")
    return (".".join(parts[: place + 1]) for place in range(len(parts)))


def _source(name: str, module: ModuleType) -> ModuleSource:
    search = getattr(module, "__path__", None)
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    return ModuleSource(
        name=name,
        file=getattr(module, "__file__", None) or "",
        search=None if search is None else tuple(search),
        is_rewritten=type(loader).__name__ == _HOOK,
    )


def load(sources: Iterable[ModuleSource]) -> None:
    """Import modules in a rank, unless they are imported already."""
    for source in sources:
        imported = sys.modules.get(source.name)
        if imported is None or (getattr(imported, "__file__", None) or "") != source.file:
            _load(source)


def _load(source: ModuleSource) -> None:
    module = _from_file(source) if source.file else _without_file(source)
    parent, _, name = source.name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], name, module)


def _without_file(source: ModuleSource) -> ModuleType:
    try:
        return importlib.import_module(source.name)
    except ImportError:  # pytest has made up a package for a folder that is not on the path
        module = ModuleType(source.name)
        module.__path__ = list(source.search or ())
        sys.modules[source.name] = module
        return module


def _from_file(source: ModuleSource) -> ModuleType:
    search = None if source.search is None else list(source.search)
    hooks = [hook for hook in sys.meta_path if type(hook).__name__ == _HOOK]
    loader: Any = hooks[0] if hooks and source.is_rewritten else None
    spec = util.spec_from_file_location(
        source.name, source.file, loader=loader, submodule_search_locations=search
    )
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"{source.file} is not a Python module", name=source.name)
    module = util.module_from_spec(spec)
    sys.modules[source.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[source.name]
        raise
    return module


_OWN = os.path.dirname(__file__)
_ENTERED = "paceline: number of ranks that have the group"


@dataclass(frozen=True)
class Files:
    """The files that a rank writes to."""

    stdout: Path | None  # its output; None if it goes where pytest's own goes
    stderr: Path | None  # its error output, likewise
    stacks: Path  # what faulthandler writes

    @classmethod
    def of(cls, folder: Path, rank: int, *, is_captured: bool) -> Files:
        """Return the files of a rank in a folder."""
        stdout, stderr = folder / f"rank-{rank}.out", folder / f"rank-{rank}.err"
        stacks = folder / f"rank-{rank}.stacks"
        return cls(stdout, stderr, stacks) if is_captured else cls(None, None, stacks)


def serve(channel: RankChannel, rank: int, files: Files) -> None:
    """Perform jobs until the channel is closed; it brings jobs and takes outcomes."""
    _redirect(files)
    # Jobs leave process groups behind that are destroyed and not yet collected. A loader worker
    # that collects one, in a fork where its threads are gone, ends by SIGSEGV in torch 2.15.
    os.register_at_fork(before=gc.disable, after_in_parent=gc.enable, after_in_child=_keep_garbage)
    while True:
        try:
            job: RankJob = channel.receive()
        except EOFError:
            return
        with _surroundings(job, rank):
            _perform(job, rank, channel)


def _redirect(files: Files) -> None:
    stacks = os.open(files.stacks, os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_WRONLY, 0o600)
    faulthandler.enable(stacks)
    if stack_responder.SIGNAL:
        faulthandler.register(stack_responder.SIGNAL, file=stacks, all_threads=True)
    for path, stream in ((files.stdout, sys.stdout), (files.stderr, sys.stderr)):
        if path is not None:
            handle = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_WRONLY, 0o600)
            os.dup2(handle, stream.fileno())
            os.close(handle)
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what a dying rank says


def _keep_garbage() -> None:
    """In a fork: collect nothing that its parent has left."""
    gc.freeze()
    gc.enable()


@contextlib.contextmanager
def _surroundings(job: RankJob, rank: int) -> Iterator[None]:
    """Be where the test process is: environment, folder, path; with the seeds of this rank."""
    env.replace({**job.environ, **_variables(job.start, rank)})
    with contextlib.suppress(OSError):  # a folder that is gone is gone for the test as well
        os.chdir(job.folder)
    sys.path[:] = job.path
    _seed(rank)
    if "paceline.train.session" in sys.modules:
        from paceline.train.session.run_folder import reset

        reset()  # a test stands for a new process
    yield
    faults.forget()


def _variables(start: RankStart, rank: int) -> dict[str, str]:
    """Return the variables of torchrun for a rank."""
    if start.kind == BARE:
        return {}
    size = str(start.world_size)
    return {
        env.RANK: str(rank),
        env.LOCAL_RANK: str(rank),
        env.WORLD_SIZE: size,
        env.LOCAL_WORLD_SIZE: size,
        env.MASTER_ADDR: "127.0.0.1",
        env.MASTER_PORT: str(start.port),
    }


def _seed(rank: int) -> None:
    """Seed every generator with the rank: unseeded draws differ between ranks, and repeat."""
    import torch

    random.seed(rank)
    torch.manual_seed(rank)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(rank)


def _perform(job: RankJob, rank: int, channel: RankChannel) -> None:
    """Make the call and send its outcome, before the group ends if the call has failed.

    The other ranks notice the end of the group, and what they then say is a consequence.
    """
    since_ns = time.time_ns()
    outcome = _outcome(job, rank, channel, since_ns)
    if outcome.kind == RETURNED:
        try:
            _leave_group()
        except Exception as error:
            outcome = _failure(error, job, since_ns)
    channel.send(outcome)
    if outcome.kind != RETURNED:
        with contextlib.suppress(Exception):
            _leave_group()


def _outcome(job: RankJob, rank: int, channel: RankChannel, since_ns: int) -> RankOutcome:
    """Make the call; return how it ended."""
    faults.prepare(rank, channel)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the test process has shown them
            load(job.modules)
        with warnings.catch_warnings(record=True) as raised:
            filters, function, args, kwargs = unpack(job.call)
            warnings.simplefilter("default")  # makes Python forget what it has decided before
            warnings.filters[:] = filters  # type: ignore[index]
            with _made_here(args, kwargs, rank) as (own_args, own_kwargs):
                _enter_group(job.start, rank)
                value = function(*own_args, **own_kwargs)
        faults.require_happened()
        outcome = _returned(value)
    except pytest.skip.Exception as error:
        return RankOutcome(SKIPPED, time.monotonic(), headline=str(error))
    except pytest.xfail.Exception as error:
        return RankOutcome(XFAILED, time.monotonic(), headline=str(error))
    except BaseException as error:
        return _failure(error, job, since_ns)
    return replace(outcome, warnings=tuple(map(_described, raised)))


@contextlib.contextmanager
def _made_here(args: Any, kwargs: Any, rank: int) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Replace arguments that each rank makes for itself."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        values = {"rank": rank, "monkeypatch": monkeypatch}

        def own(value: Any) -> Any:
            return values[value.name] if isinstance(value, PerRank) else value

        yield [own(value) for value in args], {key: own(value) for key, value in kwargs.items()}


def _enter_group(start: RankStart, rank: int) -> None:
    """Make the default group if the job begins with one, and wait until all ranks have it.

    A body without a collective may end before another rank has connected to this one.
    """
    import torch.distributed as dist

    if start.kind == VARIABLES or (start.kind == BARE and start.world_size == 1):
        return
    store = dist.FileStore(start.store, start.world_size)  # type: ignore[attr-defined]
    limit = timedelta(seconds=start.collective_timeout_s)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=start.world_size, timeout=limit
    )
    deadline = time.monotonic() + start.collective_timeout_s
    num_entered = store.add(_ENTERED, 1)
    while num_entered < start.world_size and time.monotonic() < deadline:
        time.sleep(0.002)
        num_entered = store.add(_ENTERED, 0)


def _leave_group() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def _returned(value: Any) -> RankOutcome:
    try:
        content, _ = pack(value)
    except Exception as error:
        raise TypeError(
            f"the ranks cannot send back what the function has returned, a {type(value).__name__}:"
            f" {error}"
        ) from None
    return RankOutcome(RETURNED, time.monotonic(), value=content)


def _described(warning: warnings.WarningMessage) -> RankWarning:
    category, _ = pack(warning.category)
    return RankWarning(str(warning.message), category, warning.filename, warning.lineno)


def _failure(error: BaseException, job: RankJob, since_ns: int) -> RankOutcome:
    """Return the outcome of an exception, with its traceback as pytest prints it."""
    time_s = time.monotonic()
    info = pytest.ExceptionInfo.from_exception(error)
    style: Any = "short" if job.is_short else "long"
    text = str(info.getrepr(showlocals=job.shows_locals, style=style, tbfilter=_users_part))
    place = _place(info)
    if str(info.traceback[-1].path).startswith(_OWN):
        text = f"E   {info.exconly(tryshort=True)}"  # not raised by the user's code
    elif style == "long" and not text.startswith(">"):
        text = f"    {text}"  # pytest strips the whole, also the indentation of its first line
    content = b""
    with contextlib.suppress(Exception):
        content, _ = pack(error)
        unpack(content)  # many exceptions can be pickled and not be made again
    return RankOutcome(
        FAILED,
        time_s,
        headline=info.exconly(tryshort=True).splitlines()[0],
        text=text,
        place=place,
        exception=content,
        calls=_calls(since_ns),
    )


def _calls(since_ns: int) -> tuple[Call, ...]:
    """Return the collectives that this rank has called since a time."""
    entries = [
        entry for entry in stack_responder.entries() if entry.get("time_created_ns", 0) > since_ns
    ]
    recent = stack_responder.describe(entries, members={}, threads=[])["recent"]
    return tuple(Call(*values) for values in recent)


def _users_part(info: pytest.ExceptionInfo[BaseException]) -> Any:
    """Return the traceback without the frames of this package; those of libraries in one line."""
    entries = info.traceback.filter(lambda entry: not str(entry.path).startswith(_OWN))
    places = [place for place, entry in enumerate(entries) if is_users(str(entry.path))]
    if not places:
        return info.traceback
    return type(entries)(
        entry if is_users(str(entry.path)) else entry.with_repr_style("short")
        for entry in entries[places[0] :]
    )


def _place(info: pytest.ExceptionInfo[BaseException]) -> str:
    """Return the innermost line of the user's own code; empty if there is none."""
    lines = [
        f"{shown_path(str(entry.path))}:{entry.lineno + 1}"
        for entry in info.traceback
        if is_users(str(entry.path))
    ]
    return lines[-1] if lines else ""
