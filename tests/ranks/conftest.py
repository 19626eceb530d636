"""The ranks of the pytest plugin, as tests of Session need them.

In a world of one there is no group and no variable, as where ``python train.py`` starts a Session.
"""

import os
import socket
from datetime import timedelta

import pytest
import torch.distributed as dist

from paceline import env
from paceline.machine import accelerator
from paceline.testing.job import BARE, VARIABLES, unpack
from paceline.testing.pool import RankCall, Ranks
from paceline.testing.processes import Style

COLLECTIVE_TIMEOUT_S = 15


def on_accelerator(function, *args):
    """Call a function on ranks that use this machine's accelerator, which the plugin hides from them."""
    del os.environ[env.CUDA_DEVICES]
    if dist.is_initialized():
        kind, rank, size = accelerator.kind(), dist.get_rank(), dist.get_world_size()
        store = dist.PrefixStore(kind, dist.distributed_c10d._get_default_store())
        dist.destroy_process_group()
        dist.init_process_group(
            f"cpu:gloo,{kind}:{dist.get_default_backend_for_device(kind)}",
            store=store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_S),
        )
    return function(*args)


class SessionRanks:
    """Ranks whose functions make a Session, or use the group that is there."""

    def __init__(self, pool):
        self._pool = pool

    def run(self, function, *args, world_size, launched=False):
        """Return what ``function(*args)`` returns on each rank of a new default process group.

        The function is at the top of a test module, ``args`` are plain data. In a world of one
        there is no group. ``launched`` sets torchrun's variables instead of making a group.
        """
        if accelerator.kind() != "cpu":
            function, args = on_accelerator, (function, *args)
        outcomes = self._pool.call(
            RankCall(function, args),
            world_size=world_size,
            kind=VARIABLES if launched else BARE,
            collective_timeout_s=COLLECTIVE_TIMEOUT_S,
        )
        return [unpack(outcomes[rank].value) for rank in range(world_size)]


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Ranks are in the folder of the test process: what a Session without a folder writes is in none of the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def ranks(ranks):
    """The plugin's ranks; see ``SessionRanks.run``."""
    return SessionRanks(ranks)


@pytest.fixture(scope="module")
def library_ranks(request, pytestconfig):
    """Ranks of the test module's own, with the libraries that it names in ``LIBRARIES``; else the common ones."""
    libraries = getattr(request.module, "LIBRARIES", None)
    if libraries is None:
        yield request.getfixturevalue("ranks")
        return
    preload = (*pytestconfig.getini("ranks_preload"), *libraries)
    timeout_s = float(pytestconfig.getini("ranks_timeout_s"))
    pool = Ranks(Style.of(pytestconfig), preload=preload, timeout_s=timeout_s)
    pool.start()
    yield SessionRanks(pool)
    pool.close()


@pytest.fixture(scope="module")
def alone(library_ranks, tmp_path_factory):
    """What the set-ups of a module come to on one rank; see ``parity.Alone``."""
    from ranks import parity

    return parity.Alone(library_ranks, tmp_path_factory.mktemp("alone"))


@pytest.fixture
def port():
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
