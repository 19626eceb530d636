"""Measure a training run, explain where its time goes, and forecast it on more ranks.

trial            starts a script on some ranks for some steps; a command's folder of trials
files_as_before  puts back what the trials of a command have overwritten
bench_file       reads and writes bench.json; decides what it says of scaling
intervals        medians with intervals
network          ``bench network``; network_worker runs in its ranks, network_points prints
speed            finds a run, and reads its speed while it runs
top              the lines of ``paceline top``
proof            ``run --prove``: a second start that shows what the first one left open
"""
