"""The variables that NCCL, torch, gloo and libfabric read, by version, and what is folklore."""

from __future__ import annotations

from paceline.diagnose.variables.description import describe
from paceline.diagnose.variables.gather import gather_settings
from paceline.diagnose.variables.judge import judge_settings

__all__ = ["describe", "gather_settings", "judge_settings"]
