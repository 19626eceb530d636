"""Write a small project to begin with: a script that trains, its test, and its profile.

folder    the kinds of projects, the texts of their files, and the folder that gets them
"""

from paceline.cli.new.folder import create

__all__ = ["create"]
