"""The launcher: starts ranks on torch's elastic engine, and monitors them.

plan        what is decided before the start, with reasons: options, script, ports (no torch)
probe       what is measured inside a rank: steps, losses, loops, parameters
in_rank     what runs in a rank around the user's script: the entry, its files, workarounds
channel     how launchers of a run communicate: signatures, heartbeats, the control channel
monitor     what ranks do while they run: progress, hangs, what they wait for
outcome     why the run ended: rank exits, the root cause, the final report, the resume command
preflight   the comparison of the nodes before ranks start
rendezvous  how nodes meet: the store, the roll call, the reasons why nodes are missing
run         the launch itself: fork server, agent, signals; it combines the packages above
"""
