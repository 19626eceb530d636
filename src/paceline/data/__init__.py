"""Data: the order of an epoch, each rank's share of a batch, and the loader."""

from paceline.data.loader import Loader, Rows, Tally

__all__ = ["Loader", "Rows", "Tally"]
