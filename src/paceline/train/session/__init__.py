"""The training API: what a script meets (``session.py``), and what it stands on."""

from paceline.train.session.session import Session

__all__ = ["Session"]
