"""Slurm jobs: submit a script, follow its output, list runs, and requeue.

    request          the options of ``paceline submit``, checked
    option_rules     which values an option takes
    batch            the batch script
    job_file         what ``--from`` takes from a job script that somebody has
    sbatch           call sbatch, and what it says as findings
    jobs             submit, follow, list, requeue and cancel jobs
    sweep            arrays of runs with different arguments
    job_states       what squeue, scontrol and sacct know about a job
    record           ``job.json``, what is known about the job of a run folder
    limits           whether this cluster can ever run the job (``judge``)
    cluster          what the cluster says about itself
    profile          defaults of a site and of a user
    profile_files    where profiles are
    stop_signal      the signal at which a script saves a checkpoint
    toml_reader      TOML with the lines of its values

Pure modules turn a request into a batch script and Slurm's answers into findings; the others write
the run folder and call Slurm's commands. Nothing here imports torch, since login nodes often have
none.
"""
