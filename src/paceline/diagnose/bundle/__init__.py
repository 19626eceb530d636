"""Make a redacted archive of a run, to attach to a ticket (``paceline explain --bundle``)."""

from paceline.diagnose.bundle.archive import bundle

__all__ = ["bundle"]
