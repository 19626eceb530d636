"""The settings that ``accelerate launch`` (1.15) gives its ranks, for runs of paceline.

table         options, their defaults, and the variables that pass them to ranks (data)
settings      turns options and a configuration into variables and options of a run (pure)
config_file   finds and reads a configuration (reads files, decides nothing)
choice        decides whether a run uses a configuration, and describes it (pure)
"""
