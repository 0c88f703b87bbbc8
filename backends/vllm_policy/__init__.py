"""lmperf's queue policies inside vLLM: a scheduler class for its V1 engine whose waiting queue is a Policy.

Only :mod:`backends.vllm_policy.scheduler` imports vLLM; the rest runs, and is tested, without it. Here the engine has the
slots, so this uses a Policy alone, not the dispatcher: no admission limits, no time-outs (docs/inside-vllm.md).
"""
