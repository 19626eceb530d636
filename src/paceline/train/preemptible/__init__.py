"""``paceline.preemptible``: a loop of the user's own saves, stops and resumes as a Session does.

run        the function that scripts call, and the run that it returns
progress   where the loop is, what is saved, and when
agreement  after which step all ranks stop
follower   where the loop over one loader is, and where it continues
samplers   samplers: their state, where a loop begins, the shares of other ranks
objects    models, optimizers and others among what a script passes
"""

from paceline.train.preemptible.run import preemptible

__all__ = ["preemptible"]
