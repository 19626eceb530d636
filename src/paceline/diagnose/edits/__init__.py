"""Edits that remove a finding of ``lint``, where it is certain what to write (``paceline lint
--fix``).

apply  make the edits of a file, keep those after which lint finds less, and show or write them
lines  the edit for each finding that has one
"""
