"""Collectors: each reads a part of the machine, decides nothing, and omits what it cannot read."""
