"""Real gloo ranks, of the pytest plugin: started once, kept alive, and handed functions by name.

A test of Session needs ranks as ``python train.py`` starts one: in a world of one there is no group.
"""

from __future__ import annotations

import socket

import pytest

from paceline.testing.job import BARE, VARIABLES
from paceline.testing.pool import Call, Ranks, unpack

PRELOAD = ("paceline.train.session",)
COLLECTIVE_TIMEOUT_S = 15
TIMEOUT_S = 50


class SessionRanks:
    """Ranks whose functions make a Session, or use the group that is there.

    Args:
        modules: Names of modules that are imported once for all ranks.
    """

    def __init__(self, modules=()):
        self._ranks = Ranks(preload=(*PRELOAD, *modules), timeout_s=TIMEOUT_S)

    def start(self):
        """Start, and let the first test wait until it is done."""
        self._ranks.start()

    def run(self, function, *args, world_size, launched=False):
        """Return what ``function(*args)`` returns on each rank of a new default process group.

        Args:
            function: A function at the top of a test module.
            *args: Plain data.
            world_size: Number of ranks, 1 to 4. In a world of one there is no group.
            launched: Whether to set torchrun's variables instead of making a group.
        """
        outcomes = self._ranks.call(
            Call(function, args),
            world_size=world_size,
            kind=VARIABLES if launched else BARE,
            collective_timeout_s=COLLECTIVE_TIMEOUT_S,
        )
        return [unpack(outcomes[rank].value) for rank in range(world_size)]

    def close(self):
        """End all ranks."""
        self._ranks.close()


@pytest.fixture(scope="session")
def ranks():
    """The ranks; see ``SessionRanks.run``."""
    pool = SessionRanks()
    pool.start()
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def library_ranks(request):
    """Ranks of the test module's own, with the libraries that it names in ``LIBRARIES``; else the common ones."""
    libraries = getattr(request.module, "LIBRARIES", None)
    if libraries is None:
        yield request.getfixturevalue("ranks")
        return
    pool = SessionRanks(libraries)
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
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
