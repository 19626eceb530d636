"""The launcher: starts ranks on torch's own elastic engine, and sees inside them.

Before the start
    command_line, options, option_fit   what may be asked for, what fits together (pure)
    early_variables   what torch reads when it is imported      script    is there one to run (hand)
    host      facts of this machine (hand)          plan      what is decided, with reasons (pure)
Before the ranks, on several nodes
    store, knock, arrival, notes      the head is reached, nodes announce themselves (hands)
    presence, unreached               who is missing, and why (pure)
    run_secret, signed_store          what nodes write is signed (hands)    signing   how (pure)
    rollcall, facts, reach, link      nodes tell what they are, try each other's addresses, measure (hands)
    likeness, interfaces              are they alike, and which interface each uses (pure)
In the launcher
    starter   the warm process that forks and reaps ranks; task: what a rank is to run
    signals, rendezvous, board, agent, ranks   nodes meet, talk, and keep their ranks
    console, logs                     log files and what is shown
    watch, stacks, children, sockets, ras   where ranks stand when nothing moves (hands)
    locate, proof, waiting, position, guards   what that means (pure)
    observer  looks at pulses while ranks run (hand)           observations   what they show (pure)
In a rank
    worker    the entry around the user's script    probe     counts steps and times data
    loops, orders   what loops over loaders show               checks, finite, replicas, parameters   on demand
    witness   answers where the rank stands         guard     is the store this run's
    keep_group, after_import, system   small print
At the end
    evidence  how ranks ended (hand)                endings, outcome   why (pure)
    account, summary, nccl            what is told (pure)
    resume    how the run goes on (pure)
"""
