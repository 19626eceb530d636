"""Forecast the throughput of a script on more ranks, from a bench on a few.

bench_data   what is taken from bench.json
own_work     the time of the slowest of N ranks
collectives  the time of an all-reduce, and how much of it backward hides
model        the time of a step by number of ranks; changes says what a change is worth
fitting      fits the model to a bench, for the estimate and for each of the bootstrap's draws
prediction   points with intervals, where scaling ends, and what cannot be known
cost         GPU hours and money
text         the forecast for a terminal
notes        what it rests on and cannot know
reading      finds the bench of a run
request      the command line

No module imports torch or NumPy: a login node answers in 0.3 s.
"""

from paceline.measure.forecast.request import answer

__all__ = ["answer"]
