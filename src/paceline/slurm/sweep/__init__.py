"""Sweeps: arrays of runs with different arguments.

definition       which runs a sweep has: the grid or list of its arguments
sweep_folder     the folder of a sweep and those of its runs
sweep_submit     queue a sweep, or those of its runs that have not ended well
sweep_rows       the state of each run, and the best of them
"""
