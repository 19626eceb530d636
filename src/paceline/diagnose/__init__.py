"""Explains what went wrong without running the user's program: logs, scripts, machines,
variables.
"""
