"""The settings that ``accelerate launch`` (1.15) gives its ranks, for runs that paceline starts instead.

table         options, their defaults, and the variables that pass them to ranks (data)
settings      options and a configuration -> variables of the ranks and options of paceline run (pure)
config_file   finds and reads a configuration (reads files, decides nothing)
choice        whether a run uses a configuration, and the words for it (pure)
"""
