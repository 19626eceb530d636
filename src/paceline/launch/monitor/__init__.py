"""Watch ranks while they run: progress, hangs, what their data show, what they wait in.

watch             collects when a rank makes no progress, and acts on what the next four decide
hang              whether the run hangs, and which rank is the cause
proof             whether it can never continue
waiting           what a notice of a long wait says
position          where a stack is: in a collective, in a DataLoader, in the user's code
stacks            the stacks and collectives of this node's ranks; child_stacks of their children
conditional_line  whether only some ranks reach a line
stage_times       where the time of a step goes; step_parts in the parts that people see
bottleneck        whether steps wait for data or gradients longer than they compute
observer          collects what the counters show; observations decides what is wrong with it
fork_watch        collects about DataLoader workers; fork_deadlock decides
child_processes   what the kernel shows of a rank's children
ras               what NCCL says itself
attempt           what the others may ask of the ranks of an attempt

    attempt           one start of this node's ranks: their processes and exits, and what those who
                      watch them need
    bottleneck        decide whether steps wait for data, or for gradients, longer than they
                      compute
    child_processes   collect the child processes of a rank, such as DataLoader workers, and
                      describe them
    child_stacks      find what a child process of a rank, such as a DataLoader worker, is doing,
                      without a signal
    conditional_line  find the ``if`` that lets only some ranks reach a line of a script
    fork_deadlock     distinguish a DataLoader worker that is deadlocked in its fork from a slow
                      one
    fork_watch        watch for DataLoader workers that are deadlocked in their fork
    hang              decide whether a run hangs, and which rank is the cause, from the positions
                      of all ranks
    observations      find silent training errors from the counters of all ranks
    observer          collect what the counters of a node's ranks show, so that the head can report
                      problems
    position          the position of a rank at one moment: its stack, its last collective, and its
                      progress
    proof             prove that ranks can never continue, from the collectives in which they wait
    ras               ask NCCL for its view of a hang, through its RAS socket, which NCCL 2.24 and
                      newer have
    speed_log         keep the speed of a running attempt in the run folder: what ``paceline top``
                      and ``report`` show
    stacks            collect where the ranks of this node are: stacks and collectives from their
                      stack responders
    stage_times       account for the time of a step over all ranks: which stage took it, and which
                      rank the others waited for
    step_parts        split the time of a step into the parts that people see, in seven parts or in
                      five
    timed_steps       collect the steps whose stages the ranks of a node have timed, and choose the
                      same ones on all nodes
    waiting           write the notice about ranks that have waited for long while no hang is
                      proven
    watch             hang detection of a node: collect the positions of all ranks when one makes
                      no progress
"""
