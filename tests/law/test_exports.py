"""The public names: few, listed once, and loaded when they are asked for."""

import builtins

import pytest

import paceline
from paceline.train import checkpoint


def test_all_is_what_dir_shows():
    assert dir(paceline) == sorted(paceline.__all__)
    assert len(set(paceline.__all__)) == len(paceline.__all__)


def test_a_star_import_hides_nothing_of_pythons_own():
    assert set(dir(builtins)).isdisjoint(paceline.__all__)


@pytest.mark.parametrize("name", dir(paceline))
def test_every_public_name_resolves(name):
    assert getattr(paceline, name) is getattr(paceline, name)


@pytest.mark.parametrize("name", checkpoint.__all__)
def test_every_name_of_checkpoints_resolves(name):
    """Its names are loaded when they are asked for, from modules that are named in strings."""
    assert getattr(checkpoint, name) is getattr(checkpoint, name)


@pytest.mark.parametrize("name", ["Sesion", "annotations_", "run_", "__wrapped__"])
def test_an_unknown_name_is_an_attribute_error(name):
    with pytest.raises(AttributeError, match=name):
        getattr(paceline, name)


def test_a_misspelt_import_is_an_import_error():
    with pytest.raises(ImportError, match="Sesion"):
        from paceline import Sesion  # noqa: F401
