"""Write a small project to begin with: a script that trains, its test, and its profile.

kinds     the kinds of projects: one example and the packages that it needs
texts     writes the files of a project as texts (pure)
folder    chooses the folder, finds the example, writes the files
"""

from paceline.cli.new.folder import create

__all__ = ["create"]
