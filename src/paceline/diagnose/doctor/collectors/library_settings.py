"""Collect the settings of libraries without importing the libraries."""

from __future__ import annotations


def gather_settings() -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings of NCCL, torch, gloo and libfabric by name, and their source files."""
    from paceline.diagnose import variables

    return variables.gather_settings()
