"""The error texts of libraries, and the fault that each of them means.

languages        translate messages of the shell and the C library from other languages into
                 English
libraries        all signatures, by area
lightning_names  what became of each name of Lightning: the same here, other, or refused with
                 its text
lines            parse one line of a log: remove colours and boxes, read and remove its labels
rank_errors      read what the error of a rank says about the rank itself and about other ranks
signature        signatures: the text of a log line, and the fault that it means, as data
texts            texts of torch, NCCL and Gloo that both the signatures and ``rank_errors``
                 know
tier             how directly a text points to the cause: the order of tiers is the ranking of
                 ``explain``
tracebacks       collect Python tracebacks per process from the mixed lines of several
                 processes
"""
