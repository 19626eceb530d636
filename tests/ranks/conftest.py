"""A pool of real gloo ranks: started once, kept alive, and handed functions by reference.

This file is also the program that the pool runs, ``python conftest.py MODULES HANDLE...``: it imports torch, and the
modules, once and forks a rank for each pipe. A rank that reads the end of its pipe ends, and the program after all
of them.
"""

import contextlib
import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
import traceback
import warnings
from datetime import timedelta
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

MAX_WORLD_SIZE = 4
COLLECTIVE_TIMEOUT_S = 15
JOB_TIMEOUT_S = 50


class Ranks:
    """The pool, as tests see it.

    Args:
        folder: Where process groups meet.
        modules: Names of modules that the program imports before it forks, so that four ranks import them once.
    """

    def __init__(self, folder, modules=()):
        self._folder, self._modules = folder, modules
        self._num_jobs = 0
        self._process = None
        self._pipes = []

    def start(self):
        """Start all ranks; ``run`` does so again after a failure."""
        pairs = [Pipe() for _ in range(MAX_WORLD_SIZE)]
        handles = [theirs.fileno() for _, theirs in pairs]
        self._pipes = [ours for ours, _ in pairs]
        self._process = subprocess.Popen(
            [sys.executable, __file__, ",".join(self._modules), *map(str, handles)],
            pass_fds=handles,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
        )
        for _, theirs in pairs:
            theirs.close()

    def run(self, function, *args, world_size, launched=False):
        """Return what ``function(*args)`` returns on each rank of a new default process group.

        Args:
            function: A function at the top of a test module.
            *args: Plain data.
            world_size: Number of ranks, 1 to 4. In a world of one there is no group.
            launched: Whether to set torchrun's variables instead of making a group.
        """
        if self._process is None:
            self.start()
        self._num_jobs += 1
        meeting = free_port() if launched else str(self._folder / f"store-{self._num_jobs}")
        job = pickle.dumps(
            (function.__code__.co_filename, function.__name__, args, world_size, meeting)
        )
        try:
            for pipe in self._pipes[:world_size]:
                pipe.send_bytes(job)
            answers = [self._answer(pipe) for pipe in self._pipes[:world_size]]
        except BaseException:
            self.close()  # answers may still be on their way: the next test gets new ranks
            raise
        failures = [
            f"rank {rank}:\n{text}" for rank, (done, text) in enumerate(answers) if not done
        ]
        if failures:
            self.close()  # ranks that failed to make a group would number the next one differently
            raise AssertionError("\n".join(failures))
        return [result for _, result in answers]

    def close(self):
        """End all ranks; a rank that is stuck is killed."""
        if self._process is None:
            return
        for pipe in self._pipes:
            pipe.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = None

    @staticmethod
    def _answer(pipe):
        if not pipe.poll(JOB_TIMEOUT_S):
            raise AssertionError(f"a rank did not answer within {JOB_TIMEOUT_S} s")
        return pickle.loads(pipe.recv_bytes())


def serve(pipe, rank):
    """Perform jobs until the pipe is closed."""
    from paceline.train.session.run_folder import reset as reset_places

    # Jobs leave process groups behind that are destroyed and not yet collected. A loader worker that collects one, in
    # a fork where its threads are gone, ends by SIGSEGV in torch 2.15, without paceline too.
    os.register_at_fork(before=gc.disable, after_in_parent=gc.enable, after_in_child=keep_garbage)
    while True:
        try:
            file, name, args, world_size, meeting = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        reset_places()  # a job stands for a process of its own
        try:
            with warnings.catch_warnings(), world(rank, world_size, meeting):
                warnings.simplefilter("error")
                warnings.filterwarnings(
                    "ignore", "TypedStorage is deprecated"
                )  # as in pyproject.toml
                answer = True, getattr(load(file), name)(*args)
        except Exception:
            answer = False, traceback.format_exc()
        pipe.send_bytes(pickle.dumps(answer))


def keep_garbage():
    """In a fork: collect nothing that its parent has left."""
    gc.freeze()
    gc.enable()


@contextlib.contextmanager
def world(rank, world_size, meeting):
    """Make the default group over the file ``meeting``, or set torchrun's variables if it is a port."""
    import torch.distributed as dist

    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if isinstance(meeting, int):
        values = (rank, rank, world_size, "127.0.0.1", meeting)
        os.environ.update(zip(names, map(str, values), strict=True))
    elif world_size > 1:
        store = dist.FileStore(meeting, world_size)
        timeout = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=world_size, timeout=timeout
        )
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        for name in names:
            os.environ.pop(name, None)


def free_port():
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def load(file):
    """Import a test module by its file, once."""
    name = f"ranks_{Path(file).stem}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, file)
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def main(modules, handles):
    """Fork a rank for each pipe, and wait until all have ended."""
    import torch

    import paceline.train.session  # noqa: F401

    for name in modules:
        import_module(name)
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # the first one imports half of torch
    for rank, handle in enumerate(handles):
        if os.fork() == 0:
            serve(Connection(handle), rank)
            os._exit(0)
    for _ in handles:
        os.wait()


if __name__ == "__main__":
    main(list(filter(None, sys.argv[1].split(","))), [int(text) for text in sys.argv[2:]])
else:
    import pytest

    @pytest.fixture(scope="session")
    def ranks(tmp_path_factory):
        """The pool of ranks; see ``Ranks.run``."""
        pool = Ranks(tmp_path_factory.mktemp("ranks"))
        pool.start()
        yield pool
        pool.close()

    @pytest.fixture(scope="module")
    def library_ranks(request, tmp_path_factory):
        """A pool of the test module's own, with the libraries that it names in ``LIBRARIES``; else the common one."""
        libraries = getattr(request.module, "LIBRARIES", None)
        if libraries is None:
            yield request.getfixturevalue("ranks")
            return
        pool = Ranks(tmp_path_factory.mktemp("ranks"), libraries)
        pool.start()
        yield pool
        pool.close()

    @pytest.fixture(scope="module")
    def alone(library_ranks, tmp_path_factory):
        """What the set-ups of a module come to on one rank; see ``parity.Alone``."""
        from ranks import parity

        return parity.Alone(library_ranks, tmp_path_factory.mktemp("alone"))

    @pytest.fixture
    def port():
        """A port that nobody listens on."""
        return free_port()
