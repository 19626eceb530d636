"""``python -m paceline``."""

from paceline.entry import main

main()
