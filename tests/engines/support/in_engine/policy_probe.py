"""Runs cases in the engine's own process, step by step, and writes what every step gave.

Started by the engine's python: ``policy_probe.py MODEL CASES.json ANSWERS.json``. No HTTP and no clock stand between the
requests and the scheduler, so a case has one answer on every machine. A case:

* ``config``: the file that LMPERF_VLLM_CONFIG names, or null for vLLM's own scheduler; ``engine``: arguments of the engine;
* ``requests``: ``{id, tenant, prompt, tokens}`` (lengths in tokens), all submitted before the first step, in this order;
* ``abort_at``: ``{step: [ids]}``, aborted before that step; ``steps``: how many to run, or null until nothing is left;
* ``ahead``: true to plan each step while the one before it runs, as vLLM does on a GPU. Its CPU platform cannot, so here
  the scheduler is the real one and the model is a stand-in that gives one token a step.

Its answer: ``log``, a list of ``[step, id, new tokens, finish reason or null]`` in the order in which they were given; the
number of ``preemptions``; the ids that the engine still holds at the end (``left``).
"""

import json
import os
import random
import sys
from collections import deque
from pathlib import Path

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.outputs import ModelRunnerOutput

_FIRST_TEXT_TOKEN = 10
_VOCABULARY = 1000


def prompt(length, seed):
    """Token ids, different for each request, so that no prefix is shared."""
    draw = random.Random(seed)
    return [draw.randrange(_FIRST_TEXT_TOKEN, _VOCABULARY) for _ in range(length)]


class Ahead:
    """Two steps in flight: the second is planned before the first has given its tokens."""

    def __init__(self, core):
        self.scheduler = core.scheduler
        self.flying = deque()

    def step(self):
        if self.scheduler.has_requests():
            plan = self.scheduler.schedule()
            whole = [name for name in plan.num_scheduled_tokens if not self.scheduler.requests[name].is_prefill_chunk]
            self.flying.append((plan, set(whole)))
            if plan.total_num_scheduled_tokens and len(self.flying) < 2:
                return {}
        plan, whole = self.flying.popleft()
        names = list(plan.num_scheduled_tokens)
        return self.scheduler.update_from_output(
            plan,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: index for index, name in enumerate(names)},
                sampled_token_ids=[[_FIRST_TEXT_TOKEN] if name in whole else [] for name in names],
            ),
        )

    def has_work(self):
        return bool(self.flying) or self.scheduler.has_requests()


class Together:
    """The engine's own step."""

    def __init__(self, core):
        self.core = core

    def step(self):
        outputs, _ = self.core.step_fn()
        return outputs or {}

    def has_work(self):
        return self.core.scheduler.has_requests()


def replan_ahead(core):
    """The engine's scheduler made anew, as a platform with asynchronous scheduling makes it."""
    before = core.scheduler
    before.vllm_config.scheduler_config.async_scheduling = True
    core.scheduler = before.vllm_config.scheduler_config.get_scheduler_cls()(
        vllm_config=before.vllm_config,
        kv_cache_config=before.kv_cache_config,
        structured_output_manager=before.structured_output_manager,
        block_size=before.block_size,
        hash_block_size=before.hash_block_size,
        log_stats=before.log_stats,
    )


def submit(engine, core, requests):
    """The engine's requests by the ids of the case."""
    submitted = {}
    for number, asked in enumerate(requests):
        named = {} if asked["tenant"] is None else {"lmperf_tenant": asked["tenant"]}
        parameters = SamplingParams(
            max_tokens=asked["tokens"],
            ignore_eos=True,
            temperature=0.0,
            extra_args=named,
            output_kind=RequestOutputKind.DELTA,
        )
        known = set(core.scheduler.requests)
        engine.add_request(asked["id"], {"prompt_token_ids": prompt(asked["prompt"], number)}, parameters)
        (name,) = set(core.scheduler.requests) - known
        submitted[asked["id"]] = core.scheduler.requests[name]
    return submitted


def run(model, case):
    arguments = {"model": model, "dtype": "bfloat16", "enforce_eager": True, **case["engine"]}
    if case["config"] is not None:
        os.environ["LMPERF_VLLM_CONFIG"] = case["config"]
        arguments["scheduler_cls"] = "lmperf.vllm_scheduler.PolicyScheduler"
    engine = LLMEngine.from_engine_args(EngineArgs(**arguments), enable_multiprocessing=False)
    core = engine.engine_core.engine_core
    if case["ahead"]:
        replan_ahead(core)
    requests = submit(engine, core, case["requests"])
    ids = {request.request_id: asked for asked, request in requests.items()}
    stepper = Ahead(core) if case["ahead"] else Together(core)
    log, step = [], 0
    while stepper.has_work() and (case["steps"] is None or step < case["steps"]):
        aborted = case["abort_at"].get(str(step), [])
        core.abort_requests([requests[asked].request_id for asked in aborted])
        for of_client in stepper.step().values():
            for output in of_client.outputs:
                reason = None if output.finish_reason is None else str(output.finish_reason)
                log.append([step, ids[output.request_id], len(output.new_token_ids), reason])
        step += 1
    answer = {
        "log": log,
        "scheduler": type(core.scheduler).__name__,
        "preemptions": sum(request.num_preemptions for request in requests.values()),
        "left": [ids[name] for name in core.scheduler.requests],
    }
    core.abort_requests(list(core.scheduler.requests))
    core.shutdown()
    return answer


if __name__ == "__main__":
    model, cases, answers = sys.argv[1:]
    given = json.loads(Path(cases).read_text(encoding="utf-8"))
    found = {case["name"]: run(model, case) for case in given}
    Path(answers).write_text(json.dumps(found), encoding="utf-8")
