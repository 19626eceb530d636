"""``paceline verify``: does a script on several ranks do what it does on one?

records      what the ranks have recorded (``launch.probe.recorder`` writes it), and verdicts on it
samples      who reads which samples, in which order; the samples of an evaluation
rates        the learning rate
replicas     whether ranks train one model together; their parameters
recorded_values  sums of values that ranks have recorded, beside those of one process
values       whether losses, gradients and updates are those of one process
value_findings   what is said of those that are not
masks        dropout masks
command      all of it, from the request to the result as text
"""

from paceline.measure.verify.command import require_batch_option, verify

__all__ = ["require_batch_option", "verify"]
