"""The pytest plugin: run tests on several gloo ranks of this machine, without GPUs.

pytest ──starts──> server ──forks──> rank 0, rank 1, ...

plugin     what pytest loads: the mark ``ranks`` and the fixtures. It imports neither torch nor
           the other modules until a test uses them
mark       reads the mark
pool       starts the ranks, sends them jobs, and collects what they return
processes  the processes of server and ranks, and what they print
server     the program that forks ranks
rank       what runs in each: it imports the tests there
faults     injects faults
report     decides what a failure says
parity     compares results
job        what both sides share: a job, its outcome, and the channel between them
"""
