"""Hands: each reads one part of the machine, decides nothing, and says less where it cannot read."""
