"""Forecast the throughput of a script on more ranks, from a bench on a few.

bench_data   what is taken from bench.json
collectives  the time of an all-reduce, and how much of it backward hides
fitting      the time of a step by number of ranks, fitted to a bench for each draw of the bootstrap
prediction   points with intervals, where scaling ends, and what cannot be known
request      the command line, the bench that is meant, what is printed and written

No module imports torch or NumPy: a login node answers in 0.3 s.
"""

from paceline.measure.forecast.request import answer

__all__ = ["answer"]
