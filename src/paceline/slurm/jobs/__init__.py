"""Jobs from submission to their end.

submit        queue a job: the batch script, the run folder, sbatch
reserve       the run folder and the address that all nodes of a job use
follow        show the output of a job through all its starts, and end as its run does
listing       the runs of a folder: state, nodes, last step, loss
run_rows      what the files of a run say for its row of the list
requeue       whether a job that has ended is queued again (``decide``)
cancel        end jobs for good
clean         delete checkpoints and folders that no run needs
explanations  how a job has ended, as a finding
"""
