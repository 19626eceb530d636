"""Run a launch: plan, fork server, rendezvous, agent, signals and final report come together here.

start        up to the fork of the fork server, in the launcher and in each rank
fork_server  a process that has imported torch, and forks the ranks
launcher     owns the run on this node; its main thread handles signals and reports the end
signals      receives signals, and decides which of them ends the ranks at once
node         its other thread: this node meets the others, and its agent starts ranks
link         what the two threads exchange
peers        the other nodes, over all attempts
folder       the run folder
agent        torch elastic's agent, adapted; ``context`` has what its attempts share
ranks        the ranks of one attempt: start, end, and what their exits show
supervision  watches the ranks of one attempt
console      which ranks' output is shown, and with which prefix; pump and log_file carry it

    agent        the agent of a node: torch elastic's agent, with ranks from the fork server
    checkup      run ``paceline run --check-only``: nodes meet, compare themselves and run the
                 doctor; no script
    console      route the output of ranks: every rank has a log file, and some are shown on the
                 console too
    context      the objects that a node's launcher uses from the start to the end of the run
    folder       choose, create and own the run folder of a node; ``node`` writes ``plan.json``
                 into it
    fork_server  the fork server: fork ranks, reap them, and ensure that none outlives the launcher
    inline       implement ``paceline.launch``: run a function on ranks, from a program or a
                 notebook
    launcher     the launcher of a node: handle signals, the clock and the node's thread, and
                 report the end
    link         exchange state between the launcher's main thread and the thread of its node
    log_file     the log file of a rank, whose loss does not affect the run
    log_names    choose the names of log files: in the run folder, or from torch's options and
                 plug-ins
    node         one node's part of a run: meet the others, create the run folder, write the plan
                 into it, and run the agent
    notices      print warnings and notices of this node, and keep warnings for the final report
    peers        keep track of the other nodes: a control channel for each attempt, losses over all
                 attempts
    pump         copy what ranks write into their pipes, in a thread: to their log files and to the
                 console
    ranks        the ranks of this node: start and reap them by the fork server, and record how
                 each one ended
    signals      receive signals to the launcher, one by one, in its main thread, and decide which
                 of them ends the ranks at once
    start        start a launch: make the plan, import torch, and fork the fork server
    supervision  start the ranks of one attempt on this node, and watch them while they run
"""

from paceline.launch.run.start import run

__all__ = ["run"]
