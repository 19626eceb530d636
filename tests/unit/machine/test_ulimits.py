"""Limits of this process."""

import resource

import pytest

from paceline.machine import ulimits


@pytest.mark.parametrize("name", ["nofile", "memlock", "stack"])
def test_a_limit_is_what_the_kernel_says(name):
    values = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))
    assert [ulimits.soft(name), ulimits.hard(name)] == list(values)  # RLIM_INFINITY is -1, too


def test_a_limit_that_the_system_does_not_have(monkeypatch):
    monkeypatch.delattr(resource, "RLIMIT_MEMLOCK")
    assert ulimits.soft("memlock") is None


def test_no_limit(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, resource.RLIM_INFINITY))
    assert (ulimits.soft("stack"), ulimits.hard("stack")) == (1024, ulimits.UNLIMITED)
