"""The variables that NCCL, torch, gloo and libfabric read, by version, and what is folklore.

allocator    check the options of torch's allocator (PYTORCH_ALLOC_CONF), parsed strictly when
             it first uses a GPU
description  describe one variable for ``explain``: who reads it, what it does, its default and
             its values
families     recognise variables of NCCL, torch and the libraries below them, and find the real
             name closest to a wrong one
folklore     names of variables that circulate although no library reads them, and what to do
             instead
gather       collect the settings that NCCL and torch would read in this process: the
             environment and NCCL's files
given        all settings together, for checks that compare several of them
harm         check for harmful settings: those that work, but cost stability, speed,
             correctness or diagnosability
judge        check settings of NCCL and torch: unknown names, invalid values, and
             contradictions
lists        check values that are lists: algorithms, protocols, interfaces, cards and
             subsystems
pairs        check settings of NCCL that override or exclude each other
renamed      check variables whose name has changed: which old names still work, and which
             versions read the new one
setting      a setting: one variable with its value and the place that sets it
table        the table of known variables: the library and versions that read them, and the
             meaning of their values
torch_pairs  check settings of torch's process group that override each other, and old names
             that are set beside new ones
values       check values that a library does not understand, and report how it reads them
versions     compare versions of libraries by their first two parts: a patch release neither
             adds nor removes a variable
"""

from __future__ import annotations

from paceline.diagnose.variables.description import describe
from paceline.diagnose.variables.families import distance
from paceline.diagnose.variables.gather import gather_settings
from paceline.diagnose.variables.judge import judge_settings

__all__ = ["describe", "distance", "gather_settings", "judge_settings"]
