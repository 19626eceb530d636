"""The command line of paceline: arguments, help, error messages, and calls of the packages that do
the work.

    entry             where the process begins
    main              the group of all commands
    start_commands    run and submit, and what all commands share that start a script
    bench_command     bench and verify
    tune_command      tune
    measure_commands  bench network, forecast, top and report
    explain_commands  explain, lint, doctor and what else reads logs and machines
    program_commands  schema and skill, for programs that call paceline
    json_types        what --json of each command prints, and json_schema its JSON Schema
    new_command       new, with the package new
    translate         other launchers' command lines as paceline's
    completion        the script for a shell, and completed_words the words that it offers
    command_help      the form of help and of what is printed
    command_errors    errors of a command line, with the option that was meant
"""

from functools import partial

from paceline.signatures.lightning_names import refuse

__getattr__ = partial(refuse, __name__)
