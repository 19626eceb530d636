"""The launcher behind ``paceline run``: start the ranks on torch's elastic engine and watch them.

The packages, in the order of their imports; each may import those above it:

    plan         which options were given, what they mean together, and how the run is started
    probe        hooks inside a rank: count steps, time data, run checks, report stacks
    in_rank      the entry point of a rank, around the user's script
    channel      how launchers talk: addresses, signatures, heartbeats, the control channel
    monitor      hang detection: where ranks are when nothing moves, and what that proves
    outcome      the root cause, the exit status, the final report and the resume command
    preflight    checks before the start: nodes are compared and their links are measured
    rendezvous   how nodes meet: the store, the roll call, and why nodes did not come
    run          the run itself: signals, rank processes, logs, the run folder
"""
