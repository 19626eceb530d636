"""Faults, played: see stage.py. A package, so that benchmarks/faults.py can play them too."""
