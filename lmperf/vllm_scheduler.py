"""What ``vllm serve --scheduler-cls lmperf.vllm_scheduler.PolicyScheduler`` loads (docs/inside-vllm.md).

Importing it needs vLLM, and raises an ImportError that says so.
"""

from __future__ import annotations

from backends.vllm_policy.scheduler import PolicyScheduler

__all__ = ["PolicyScheduler"]
