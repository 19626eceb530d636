"""Check training scripts by their syntax tree; nothing of the script is imported or run."""

from paceline.diagnose.lint.python.judging import examine

__all__ = ["examine"]
