"""Slurm: from a script to a queue and back.

Judges turn a request into a batch script and Slurm's answers into words; hands write the run folder and ask Slurm.
Nothing here imports torch: it all runs on login nodes.
"""
