"""``paceline verify``: does a script on several ranks do what it does on one?

records      what the ranks have recorded (``launch.probe.recorder`` writes it)
verdict      what is known about one property on one number of ranks
averaging    whether ranks train one model together
samples      who reads which samples, and in which order
rates        the learning rate
replicas     the parameters of the ranks
updates      losses and gradients beside those of one rank
evaluation   the samples of an evaluation, and the figure that rank 0 prints
judging      all properties, and their findings
table        the result as text
command      all of it, from the request to the result
"""

from paceline.measure.verify.command import require_batch_option, verify

__all__ = ["require_batch_option", "verify"]
