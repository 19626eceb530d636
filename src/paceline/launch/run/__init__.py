"""Run a launch: plan, fork server, rendezvous, agent, signals and final report come together here.

start        up to the fork of the fork server, in the launcher and in each rank
fork_server  a process that has imported torch, and forks the ranks
checkup      ``paceline run --check-only``: nodes meet, and the doctor examines each
inline       ``paceline.launch``: a function on ranks, from a program or a notebook
launcher     owns the run on this node; its main thread handles signals and reports the end
signals      receives signals, and decides which of them ends the ranks at once
node         its other thread: this node meets the others, and its agent starts ranks
link         tells the main thread how far the node's thread has come
stop_request tells the node's thread to end the ranks in order
peers        the other nodes, over all attempts
folder       the run folder
agent        torch elastic's agent, adapted; ``context`` has what its attempts share
ranks        the ranks of one attempt: start, end, and what their exits show
supervision  watches the ranks of one attempt
log_names    the names of log files: in the run folder, or from torch's options
notices      prints warnings and notices, and keeps warnings for the final report
console      which ranks' output is shown, and with which prefix; pump and log_file carry it
"""

from paceline.launch.run.start import run

__all__ = ["run"]
