"""Find the fastest loader settings of a script or dataset: ``paceline tune``.

search       which settings are tried
final        which of them meet again, and which one is best
measured     what was measured so far
trial_run    a script that trains, whose loader takes commands; from batches to seconds per batch
tuning       runs the script and fills in what was measured
answer       the result in words and as data, with the lines to paste
batches      which batch sizes are tried; batch_tuning runs the script with them
bare_loader  what is run for a dataset without a script
"""

from paceline.measure.tune.batch_tuning import BatchTuning, require_place
from paceline.measure.tune.trial_run import TrialStart
from paceline.measure.tune.tuning import Tuning, TuningProgress

__all__ = ["BatchTuning", "TrialStart", "Tuning", "TuningProgress", "require_place"]
