"""The launcher: starts ranks on torch's own elastic engine, and sees inside them.

options   what may be asked for                         (pure)
host      facts of this machine                         (hand)
plan      what is decided, with reasons                 (pure)
starter   the warm process that forks and reaps ranks
task      what a rank is to run
worker    the entry around the user's script, in the rank
probe     counts steps and times data, in the rank
guard     the check that a store is this run's, in the rank
rendezvous, board, agent   nodes meet, talk, and keep their ranks
console   log files and what is shown
evidence, outcome          how ranks ended (hand), and why (pure)
"""
