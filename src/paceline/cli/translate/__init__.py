"""Translate the command line of another launcher to ``paceline run``, with its environment.

command     parses a command line: wrappers, the launcher, its options (pure)
launchers   maps each launcher's options to options of paceline run, variables and notes (pure)
translate   combines the above; reads accelerate's configuration
"""

from paceline.cli.translate.translate import translate

__all__ = ["translate"]
