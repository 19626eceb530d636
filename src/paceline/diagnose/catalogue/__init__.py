"""What every finding means: one page for each code, read by ``explain CODE``, ``--json`` and the
documentation.
"""

from paceline.diagnose.catalogue.shelf import find

__all__ = ["find"]
