"""What every test may rest on: nothing that it started outlives it."""

from __future__ import annotations

import os
import threading

import pytest


def pytest_addoption(parser):
    parser.addoption("--update-goldens", action="store_true", help="Write what is compared whole from what is found.")


@pytest.fixture(autouse=True)
def clean_surroundings():
    """Fail a test that leaves the environment, a thread or a child process behind."""
    environ, threads = dict(os.environ), set(threading.enumerate())
    yield
    environ.pop("PYTEST_CURRENT_TEST", None)
    # torch sets the second one when it first needs it, in whichever test that is.
    ignored = {"PYTEST_CURRENT_TEST"} | ({"TORCHINDUCTOR_CACHE_DIR"} - set(environ))
    now = {name: value for name, value in os.environ.items() if name not in ignored}
    assert now == environ
    assert not [thread for thread in set(threading.enumerate()) - threads if not thread.daemon]
