"""Run the user's script in a rank: the worker entry, its files, and workarounds.

default_group      watch a rank's default process groups: count them, and keep each until the
                   process ends
import_hook        call a function as soon as a module has been imported, without importing it
kept_files         keep a copy of what a trial overwrites, so that its launcher can put it back
meeting            report that a script has replaced what the launcher has set for the meeting
                   of the ranks
rank_entry         the entry of a rank: bind it to CPUs on request, run the user's script, and
                   record how it ends
rank_files         files in memory through which a rank reports to its launcher, even if the
                   disk is full
store_token_check  check the store's token: a rank that connects to the store of another run
                   reports it and ends
"""
