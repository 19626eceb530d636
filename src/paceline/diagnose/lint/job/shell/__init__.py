"""Parse and interpret the shell code of a job script, without running it.

conditions  decide shell conditions whose outcome follows from the directives and the script
            itself
interpret   interpret a shell script symbolically: record the programs that it would start and
            the variables it would set
parser      parse the bash of job scripts into a syntax tree: commands, pipelines, branches,
            loops, functions
trace       the result of interpreting a script: the programs that it starts and the variables
            that it sets
tree        the nodes of a shell script's syntax tree
values      expand shell words to values: text where it is known, symbols where it is only
            known when the job runs
words       parse the words of a shell script with their quoting, which decides which shell
            expands a variable
wrappers    remove the wrappers of a command: srun and mpirun, containers, environments,
            ``env``, ``time``, ``bash -c``
"""
