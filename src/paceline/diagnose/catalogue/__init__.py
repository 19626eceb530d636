"""What every finding means: one page for each code, read by ``explain CODE``, ``--json`` and the documentation."""

from paceline.diagnose.catalogue.page import Page, PageError, parse
from paceline.diagnose.catalogue.shelf import find, page

__all__ = ["Page", "PageError", "find", "page", "parse"]
