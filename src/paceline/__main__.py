"""``python -m paceline``."""

from paceline.cli.entry import main

main()
