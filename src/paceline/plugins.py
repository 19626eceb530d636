"""Says what to write instead of a name of Lightning's ``plugins``."""

from functools import partial

from paceline.signatures.lightning_names import refuse

__getattr__ = partial(refuse, __name__)
