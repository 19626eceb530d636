"""Judges: facts in, findings out; each knows one part of the machine."""
