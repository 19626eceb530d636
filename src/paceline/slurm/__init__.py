"""Slurm jobs: submit a script, follow its output, list runs, and requeue.

request, batch   options in, the batch script out
submit, follow   queue a job, and show its output
sweep, sweep_*   arrays of runs with different arguments
cancel, clean    end jobs; delete what runs have left
requeue          whether a job that has ended is queued again (``decide``)
reserve          the address that all nodes of a job use
jobs, run_rows, jobstate
                 the runs in the queue and in the records
limits, cluster  whether this cluster can ever run the job
refusal, ending  what sbatch and Slurm say, as findings
profile          the site's and the user's defaults

Pure modules turn a request into a batch script and Slurm's answers into findings; the others write
the run folder and call Slurm's commands. Nothing here imports torch, since login nodes often have
none.
"""
