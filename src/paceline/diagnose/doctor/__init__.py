"""What a machine is like, and what follows from it for a distributed run.

Hands gather facts and judges make findings of them, so that a machine can also be judged that is only recorded.
"""

from __future__ import annotations

from paceline.diagnose.doctor.report import examine

__all__ = ["examine"]
