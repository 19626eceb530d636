"""From the command line of another launcher to the one of ``paceline run``, with the environment that it needs.

command     a command line taken apart: what stands before the launcher, which it is, its options (pure)
launchers   options of each launcher -> options of paceline run, variables and notes (pure)
line        the command line that comes out, quoted (pure)
translate   the above together; reads accelerate's configuration
"""

from paceline.cli.translate.translate import translate

__all__ = ["translate"]
