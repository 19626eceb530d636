"""The settings that ``accelerate launch`` gives its ranks, for runs of paceline.

answer      the program that asks the installed accelerate, in a process of its own
ask         starts this program for a configuration and options, and keeps its answers
settings    turns an answer into variables and options of a run (pure)
choice      decides whether a run uses a configuration, and describes it (pure)
"""
