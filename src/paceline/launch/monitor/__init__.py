"""Watch ranks while they run: progress, hangs, what their data show, what they wait in.

watch             collects when a rank makes no progress, and acts on what the next four decide
hang              whether the run hangs, and which rank is the cause
proof             whether it can never continue
waiting           what a notice of a long wait says
position          where a stack is: in a collective, in a DataLoader, in the user's code
stacks            the stacks and collectives of this node's ranks; child_stacks of their children
conditional_line  whether only some ranks reach a line
stage_times       where the time of a step goes; step_parts in the parts that people see
rare_delays       what the usual step leaves out: long steps, their rank, stage and interval (pure)
timed_steps       collects the steps that ranks have timed, the same ones on all nodes
speed_log         keeps the speed of a running attempt, for ``paceline top`` and ``report``
memory_growth     whether the memory of a rank grows from step to step
bottleneck        whether steps wait for data or gradients longer than they compute
observer          collects what the counters show; observations decides what is wrong with it
fork_watch        collects about DataLoader workers; fork_deadlock decides
child_processes   what the kernel shows of a rank's children
ras               what NCCL says itself
attempt           what the others may ask of the ranks of an attempt
"""
