"""The launcher: starts ranks on torch's own elastic engine, and sees inside them.

Before the start
    options   what may be asked for (pure)          script    is there one to run (hand)
    host      facts of this machine (hand)          plan      what is decided, with reasons (pure)
In the launcher
    starter   the warm process that forks and reaps ranks; task: what a rank is to run
    signals, rendezvous, board, agent, ranks   nodes meet, talk, and keep their ranks
    console, logs                     log files and what is shown
In a rank
    worker    the entry around the user's script    probe     counts steps and times data
    guard     is the store this run's               keep_group, after_import, system   small print
At the end
    evidence  how ranks ended (hand)                endings, outcome   why (pure)
    account, summary, nccl            what is told (pure)
    resume    how the run goes on (pure)
"""
