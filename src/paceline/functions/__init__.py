"""Python functions as jobs: ``paceline.submit``, ``paceline.map`` and the jobs that they return.

api        submit one call, or one for each item
options    keyword arguments, as options of ``paceline submit``
pickles    functions, arguments and results as files of the run folder
in_job     what runs on the ranks of a job: load the call, make it, store what it returns
job        a job from outside: its status, result, exception and logs
endings    how a job has ended (decides)
by_slurm, by_machine
           what runs jobs: Slurm, or this machine
machine_queue
           the process that starts jobs on this machine

A job is an ordinary run whose script is ``in_job``. Its call, result and exception are files in its
run folder, so any process that sees the folder can ask for them.

    api            implement ``paceline.submit`` and ``paceline.map``: run Python functions as jobs
    by_machine     jobs of functions that this machine runs without Slurm: start them, and ask for
                   their state
    by_slurm       jobs of functions that Slurm runs: how they have ended, their state, and their
                   cancellation
    direct         implement ``paceline call``: make the call of a job in this process, without a
                   launcher
    endings        decide how a job has ended, from the events of its run and what Slurm says
    in_job         make the call of a job on every rank; ``python -m paceline.functions.in_job`` in
                   its run folder
    job            A job from outside: what it returns or raises, its status, its logs, and how to
                   cancel it
    machine_queue  start the jobs of a folder on this machine, so many at a time: what Slurm does
                   elsewhere
    options        turn keyword arguments into options of ``paceline submit``
    pickles        store functions, arguments, results and exceptions in the run folder, by
                   cloudpickle
"""
