"""Versions of software: as the metadata of packages has them, and as this process uses them."""

import subprocess
import sys
from dataclasses import replace
from importlib import metadata

import paceline
from paceline.machine import software


def test_what_is_installed_is_what_is_loaded():
    """In an environment that pip installed; the metadata knows NCCL only if it is a wheel."""
    installed, loaded = software.installed(), software.loaded()
    assert installed.paceline == paceline.__version__
    assert replace(installed, nccl="") == replace(loaded, nccl="")


def test_installed_versions_do_not_need_torch():
    code = (
        "import sys; from paceline.machine import software; print(software.installed().torch);"
        "sys.exit('torch' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True
    )
    assert ended.stdout.strip() == metadata.version("torch")


def test_a_package_that_is_not_installed_has_no_version(monkeypatch):
    def is_missing(package):
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", is_missing)
    monkeypatch.setattr(metadata, "requires", is_missing)
    versions = software.installed()
    assert (versions.torch, versions.nccl) == ("", "")
    assert versions.python


def test_the_version_of_nccl_is_that_of_the_wheel_that_torch_requires(monkeypatch):
    versions = {"nvidia-nccl-cu12": "2.27.5"}
    requirements = ["filelock", 'nvidia-nccl-cu13==2.28.9; x == "y"', "nvidia-nccl-cu12==2.27.5"]

    def version(package):
        if package not in versions:
            raise metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(metadata, "requires", lambda package: requirements)
    monkeypatch.setattr(metadata, "version", version)
    assert software.installed().nccl == "2.27.5"
