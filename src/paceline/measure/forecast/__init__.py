"""Forecast the throughput of a training script on more ranks, from a bench on a few.

bench_data   what is taken from bench.json
own_work     the time of the slowest of N ranks
collectives  the time of an all-reduce, and how much of it backward hides
model        fits both to a bench; changes says what a change of the training is worth
prediction   points with intervals, where scaling ends, and what cannot be known
cost         GPU hours and money
text         the forecast for a terminal
reading      finds the bench of a run
request      the command line

No module imports torch or NumPy: a login node answers in 0.3 s.
"""

from paceline.measure.forecast.request import answer

__all__ = ["answer"]
