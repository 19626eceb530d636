"""Runs a launch: plan, warm process, nodes that meet, agent, signals, outcome. The parts of the launcher meet here.

start        up to the fork of the warm process, in the launcher and in each rank
launcher     owns the run on this node; its main thread listens to signals and reports the end
node         its other thread: this node meets the others, and its agent starts ranks
link         what the two threads tell each other
peers        the other nodes, over all attempts
folder       the run folder
agent        torch elastic's agent, adapted; context is what its attempts have in common
supervision  watches the ranks of one attempt
"""

from paceline.launch.run.start import run

__all__ = ["run"]
