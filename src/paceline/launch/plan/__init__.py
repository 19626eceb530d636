"""What is decided before anything starts: options, script, ports, what Slurm says. No torch.

accelerate        the settings that ``accelerate launch`` gives its ranks, for runs of
                  paceline
command_line      read and write command lines of ``paceline run``
early_variables   find environment variables that are set too late: torch reads them only when
                  it is imported
endpoint          choose the rendezvous endpoint of a job: an address of this host and a free
                  port
folder_errors     explain why a folder cannot be used for the files of a run
mpi_start         choose options from the task of mpirun that this launcher is: one task on
                  each node
option            declare an option of a command line: name, help, default, parser and group,
                  in one place
option_values     parse the values of options: a text in, a value or a Finding out
options           the options of ``paceline run``: torchrun's, with torchrun's meaning, and our
                  own
parsing           parse the options of ``paceline run`` from the command line, variables and
                  preferences
plan              choose the plan of a run: options and facts in, decisions with their reasons
                  out
ports             check the port to listen on before torch is imported, which takes a second or
                  more
preferences       read preferences of a user or site for all runs, from variables and a
                  configuration file
script            check the script before the start: it must exist and be valid Python; return
                  its text
slurm_step        read the Slurm step of this launcher from its variables, and choose options
                  from it
slurm_times       find how long Slurm lets a job run after SIGTERM, by queries in the
                  background at the start
starter           choose the defaults of a run's options from what started this launcher
starter_defaults  options of a run that come from what started its launcher
submit_options    the options of ``paceline submit``, and those that it forwards to
                  ``paceline run``
task              the task of a rank, which the launcher sends to it
typed_nodes       compare the nodes that a user has typed with those that are started
"""
