"""``paceline verify``: does a script on several ranks do what it does on one?

records      what the ranks have recorded (``launch.probe.recorder`` writes it), and verdicts on it
samples      who reads which samples, in which order; the samples of an evaluation
rates        the learning rate
replicas     whether ranks train one model together; their parameters
updates      losses and gradients beside those of one rank
command      all of it, from the request to the result as text
"""

from paceline.measure.verify.command import require_batch_option, verify

__all__ = ["require_batch_option", "verify"]
