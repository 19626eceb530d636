"""From rank exits and evidence: the root cause, the final report, and how to resume the run.

block         render a verdict as the final block of lines, in a fixed order
evidence      collect evidence about how ranks ended: their files, checkpoints, OOM kills,
              ``/dev/shm``
explanation   explain the exit that was judged to be the cause: a finding with evidence and fix
grace_check   check whether a checkpoint fits into the grace period, and warn as soon as one
              was measured
nccl          summarise NCCL's log in three lines: interface, transport and algorithm
node_account  the account of one node: how its part of a run ended, as nodes exchange it at the
              end
rank_exit     rank exits: the records of how ranks ended, which every node sends to all others
report        the final report of a run: exit status, last lines and findings
resume        decide how a stopped run is resumed: from which checkpoint, by which command
root_cause    decide the likely root cause from the rank exits: who failed first, who is a
              victim, and why
weight        weigh an exit: is it the cause of a failure, or does it follow from another
              rank's end?
"""
