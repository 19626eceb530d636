"""Says what to write instead of a type of Lightning's ``utilities.types``."""

from functools import partial

from paceline.signatures.lightning_names import refuse

__getattr__ = partial(refuse, "paceline.utilities")
