"""Describe a machine, and find what is wrong with it for a distributed run.

Collectors gather facts and checks turn them into findings. Recorded facts can therefore be checked
on another machine.
"""

from __future__ import annotations

from paceline.diagnose.doctor.report import examine

__all__ = ["examine"]
