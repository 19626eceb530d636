"""Python functions as jobs: ``paceline.submit``, ``paceline.map`` and the jobs that they return.

api        submit one call, or one for each item
pickles    functions, arguments and results as files of the run folder
in_job     what runs on the ranks of a job: load the call, make it, store what it returns
direct     ``paceline call``: make the call of a job in this process, without a launcher
job        a job from outside: its status, result, exception and logs
endings    how a job has ended (decides)
by_slurm, by_machine
           what runs jobs: Slurm, or this machine
machine_queue
           the process that starts jobs on this machine

A job is an ordinary run whose script is ``in_job``. Its call, result and exception are files in its
run folder, so any process that sees the folder can ask for them.
"""
