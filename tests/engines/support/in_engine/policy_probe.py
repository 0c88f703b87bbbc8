"""Runs cases in the engine's own process, step by step, and writes what every step gave.

Started by the engine's python: ``policy_probe.py MODEL CASES.json ANSWERS.json``. No HTTP and no clock between the requests
and the scheduler, so a case has one answer on every machine. A case:

* ``engine``: arguments of the engine; ``config``: the file that LMPERF_VLLM_CONFIG names, or null for vLLM's own scheduler;
* ``requests``: ``{id, tenant, prompt, tokens}`` (lengths in tokens), all submitted before the first step, in this order;
* ``aborts``: ids that are aborted before the first step;
* ``steps``: how many steps to run, or null until nothing is left.

Its answer: a list of ``[step, id, new tokens, finish reason or null]`` in the order in which the engine gave them, the
number of preemptions, and how many requests the scheduler still holds.
"""

import json
import os
import random
import sys
from pathlib import Path

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine

_FIRST_TEXT_TOKEN = 10


def prompt(length, seed):
    """Token ids, different for each request, so that no prefix is shared."""
    draw = random.Random(seed)
    return [draw.randrange(_FIRST_TEXT_TOKEN, 1000) for _ in range(length)]


def run(model, case):
    scheduler = {}
    if case["config"] is not None:
        os.environ["LMPERF_VLLM_CONFIG"] = case["config"]
        scheduler = {"scheduler_cls": case.get("scheduler_cls", "lmperf.vllm_scheduler.PolicyScheduler")}
    arguments = EngineArgs(model=model, dtype="bfloat16", enforce_eager=True, **case["engine"], **scheduler)
    engine = LLMEngine.from_engine_args(arguments, enable_multiprocessing=False)
    core = engine.engine_core.engine_core
    internal = {}
    for number, asked in enumerate(case["requests"]):
        named = {} if asked["tenant"] is None else {"lmperf_tenant": asked["tenant"]}
        parameters = SamplingParams(
            max_tokens=asked["tokens"],
            ignore_eos=True,
            temperature=0.0,
            extra_args=named,
            output_kind=RequestOutputKind.DELTA,
        )
        tokens = {"prompt_token_ids": prompt(asked["prompt"], number)}
        before = set(core.scheduler.requests)
        engine.add_request(asked["id"], tokens, parameters)
        (internal[asked["id"]],) = set(core.scheduler.requests) - before
    for aborted in case["aborts"]:
        core.abort_requests([internal[aborted]])
    names = {ours: asked for asked, ours in internal.items()}
    requests = [core.scheduler.requests[name] for name in names if name in core.scheduler.requests]
    log, step = [], 0
    while core.scheduler.has_unfinished_requests() and (case["steps"] is None or step < case["steps"]):
        outputs, _ = core.step_fn()
        for of_client in (outputs or {}).values():
            for output in of_client.outputs:
                reason = None if output.finish_reason is None else str(output.finish_reason)
                log.append([step, names[output.request_id], len(output.new_token_ids), reason])
        step += 1
    answer = {
        "log": log,
        "preemptions": sum(request.num_preemptions for request in requests),
        "left": len(core.scheduler.requests),
    }
    core.abort_requests(list(core.scheduler.requests))
    core.shutdown()
    return answer


if __name__ == "__main__":
    model, cases, answers = sys.argv[1:]
    given = json.loads(Path(cases).read_text(encoding="utf-8"))
    found = {case["name"]: run(model, case) for case in given}
    Path(answers).write_text(json.dumps(found), encoding="utf-8")
