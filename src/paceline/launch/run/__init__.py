"""Conducts a run: plan, warm process, nodes that meet, agent, signals, outcome. The rooms of the launcher meet here.

start       up to the fork of the warm process, in the launcher and in each rank
conductor   the launcher's main thread: listens to signals and to how the node does, and tells the end
node        its other thread: this node meets the others, and keeps its ranks
"""

from paceline.launch.run.start import run

__all__ = ["run"]
