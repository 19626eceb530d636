"""``paceline.preemptible``: a loop of the user's own saves, stops and resumes as a Session does."""

from paceline.train.preemptible.run import preemptible

__all__ = ["preemptible"]
