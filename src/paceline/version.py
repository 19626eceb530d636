"""The version of paceline, and the folder of its modules."""

import os

__version__ = "0.1.0"
FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
