"""The pytest plugin: run tests on several gloo ranks of this machine, without GPUs.

    pytest ──starts──> server ──forks──> rank 0, rank 1, ...

``plugin`` is what pytest loads: the mark ``ranks`` and the fixtures. It imports neither torch nor
the other modules until a test uses them. ``mark`` reads the mark. ``pool`` starts the ranks and
sends them jobs; ``answers`` collects what they return, and ``report`` decides what a failure says.
``server`` is the program that forks ranks, and ``rank`` what runs in each: ``modules`` imports the
tests there, ``faults`` injects faults. ``parity`` compares results. ``job`` and ``channel`` are
what both sides share.
"""
