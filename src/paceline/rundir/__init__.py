"""The run folder: its files, which training it belongs to, and who is using it.

committed   the committed checkpoints of a folder, and reading their manifests
events      the events of a run folder: their schema, how launchers write them, and what they
            say about the run
files       the run folder: the name of every file in it, and how to read one
identity    identify the training run that a folder belongs to
lease       lease of a run folder: a file whose counter the owner increments, so that a folder
            has one living run
lease_file  the file of a lease: the owner that it names, and how the file is read and changed
manifest    what a checkpoint holds; which is best, which are deleted, what fits a model
owned       write, replace and delete files and folders, and touch nobody else's
ownership   decide whether a file that was found may be run, unpickled or put into a job script
proofs      what is proven of a script's loss, kept beside the run folders for later runs of
            the script
sweeps      the record of a sweep: a Slurm array whose elements are runs with different
            arguments
"""
