"""What scripts take from Lightning's ``utilities`` and is another one here."""

from functools import partial

from paceline.signatures.lightning_names import refuse
from paceline.train.trainer import CombinedLoader as CombinedLoader
from paceline.utilities.rank_zero import rank_zero_only as rank_zero_only

__getattr__ = partial(refuse, __name__)
