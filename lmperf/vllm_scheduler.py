"""What ``vllm serve --scheduler-cls lmperf.vllm_scheduler.PolicyScheduler`` loads (docs/inside-vllm.md).

Importing it needs vLLM, and raises an ImportError that says so; or that another distribution took the place of one of
lmperf's packages in the engine's environment, which is looked at first.
"""

from __future__ import annotations

from lmperf.own_packages import REMEDY, foreign_packages

if foreign := foreign_packages():
    raise ImportError(f"{'; '.join(foreign)}; {REMEDY}")

# After the look: this is the import that a foreign package would break.
from backends.vllm_policy.scheduler import PolicyScheduler

__all__ = ["PolicyScheduler"]
