"""Slurm jobs: submit a script, follow its output, list runs, and requeue.

Pure modules turn a request into a batch script and Slurm's answers into findings; the others write
the run folder and call Slurm's commands. Nothing here imports torch, since login nodes often have
none.
"""
