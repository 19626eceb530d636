"""Check training scripts by their syntax tree; nothing of the script is imported or run.

checks        the checks of a training script: each takes a script and yields findings
expectations  extract what a training script expects of its job: ranks, devices, nodes,
              loader workers, address and port
judging       check a training script: parse it once, run each check, sort the findings by
              line
numbers       resolve where a number of a script comes from: a literal, an argument, an
              environment variable, the machine
objects       tables of the classes that the checks know, and of libraries that distribute
              data themselves
ranks         find the ``if`` or decorator that lets only some ranks reach a line of a
              training script
script        index a training script for the checks: imports, calls, assignments and
              functions of its syntax tree
"""

from paceline.diagnose.lint.python.judging import examine

__all__ = ["examine"]
