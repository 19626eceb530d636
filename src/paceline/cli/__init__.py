"""The command line of paceline: arguments, help, error messages, and calls of the packages that do
the work.
"""
