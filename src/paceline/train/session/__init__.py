"""The Session class, and the modules that implement it."""

from paceline.train.session.gradients import Gradients
from paceline.train.session.session import Session

__all__ = ["Gradients", "Session"]
