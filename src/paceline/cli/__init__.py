"""The command line of paceline: arguments, help, error messages, and calls of the packages that do
the work.
"""

from functools import partial

from paceline.signatures.lightning_names import refuse

__getattr__ = partial(refuse, __name__)
