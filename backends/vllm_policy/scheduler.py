"""vLLM's own scheduler with a Policy for its waiting queue; the only module here that imports vLLM.

Nothing of vLLM's scheduling is replaced: which requests run together, chunked prefill, memory, preemption are its own. It
asks its waiting queue for the next request, and that queue is ours; and its accounts follow from what each step gave:

* ``update_from_output`` returns the tokens of a step: ``on_first_token`` and ``on_progress``;
* ``_free_request`` is where every request ends, finished, aborted or failed: ``on_finish``. During a step it comes before
  the step's tokens are known, so it waits for them;
* what the policy shed, or what names no tenant, ends as an error in the same place where vLLM itself fails a request.

``kv_holding_waiting`` stays vLLM's: what waits there was taken from the policy's queue before, and holds memory.
"""

from __future__ import annotations

from typing import Any

from backends.vllm_policy.clock import EngineClock
from backends.vllm_policy.config import EngineConfig, config_from_environment
from backends.vllm_policy.engine_request import EngineRequest
from backends.vllm_policy.queue import PolicyQueue
from backends.vllm_policy.versions import UnsupportedVersionError, check_version

try:
    from vllm.logger import init_logger
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
    from vllm.v1.request import RequestStatus
    from vllm.version import __version__ as vllm_version
except ImportError as error:
    raise ImportError(
        f"{__name__} runs inside vLLM's engine, and this python has no vLLM with a V1 scheduler ({error}); start vLLM "
        "from its own environment with lmperf on its path and --scheduler-cls lmperf.vllm_scheduler.PolicyScheduler"
    ) from error

# Under vLLM's name, so that its logging configuration shows what is said here.
logger = init_logger("vllm.lmperf")


class SyncPolicyScheduler(Scheduler):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """One step at a time: what each step gave is known before the next is planned."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Raises EngineConfigError and UnsupportedVersionError."""
        config = config_from_environment()
        check_version(vllm_version, allow_untested=config.allow_untested_version)
        super().__init__(*args, **kwargs)
        if not hasattr(self, "waiting"):
            raise UnsupportedVersionError(f"vLLM {vllm_version}: its scheduler has no queue `waiting` to replace")
        self._policy_queue = PolicyQueue(
            config.build(),
            tenants=[tenant.name for tenant in config.tenants],
            tenant_key=config.tenant_key,
            default_tenant=config.default_tenant,
            resume_first=config.judges_lateness,
            clock=EngineClock(),
        )
        self.waiting = self._policy_queue
        self._in_step = False
        self._ended_in_step: list[EngineRequest] = []
        _announce(config)

    def update_from_output(self, scheduler_output: object, model_runner_output: object) -> dict[int, Any]:
        """vLLM's, then the accounts, then the requests that were given up."""
        self._in_step = True
        try:
            outputs: dict[int, Any] = super().update_from_output(scheduler_output, model_runner_output)
        finally:
            self._in_step = False
        self._policy_queue.progressed(
            {
                output.request_id: len(output.new_token_ids)
                for of_client in outputs.values()
                for output in of_client.outputs
                if output.new_token_ids
            }
        )
        ended, self._ended_in_step = self._ended_in_step, []
        for request in ended:
            self._policy_queue.ended(request)
        self._fail_given_up(outputs)
        return outputs

    def _free_request(self, request: EngineRequest, *args: object, **kwargs: object) -> object:
        freed: object = super()._free_request(request, *args, **kwargs)
        if self._in_step:
            self._ended_in_step.append(request)
        else:
            self._policy_queue.ended(request)
        return freed

    def _fail_given_up(self, outputs: dict[int, Any]) -> None:
        """As an error, and not as an abort: that is an HTTP 200 with an empty text, which a client may take for success."""
        for given_up in self._policy_queue.take_given_up():
            request: Any = given_up.request
            logger.warning("Request %s will not run: %s", request.request_id, given_up.reason)
            self.finish_requests(request.request_id, RequestStatus.FINISHED_ERROR)
            of_client = outputs.setdefault(request.client_index, EngineCoreOutputs())
            of_client.outputs.append(
                EngineCoreOutput(
                    request_id=request.request_id,
                    new_token_ids=[],
                    finish_reason=request.get_finished_reason(),
                    events=request.take_events(),
                    trace_headers=request.trace_headers,
                )
            )


class AsyncPolicyScheduler(SyncPolicyScheduler, AsyncScheduler):  # type: ignore[misc]  # as above
    """The next step is planned while one runs: vLLM's default where the platform allows it."""


class PolicyScheduler:
    """Makes the one of the two that fits the engine, which decides late whether it schedules asynchronously."""

    def __new__(cls, *, vllm_config: Any, **others: object) -> SyncPolicyScheduler:  # noqa: ANN401 (vLLM's own)
        fitting = AsyncPolicyScheduler if vllm_config.scheduler_config.async_scheduling else SyncPolicyScheduler
        return fitting(vllm_config=vllm_config, **others)


def _announce(config: EngineConfig) -> None:
    weights = ", ".join(f"{tenant.name}={tenant.weight:g}" for tenant in config.tenants)
    logger.info(
        "lmperf: policy %s %s; weights: %s; a request that names no known tenant in vllm_xargs.%s %s",
        config.policy.name,
        config.policy.options or "",
        weights,
        config.tenant_key,
        "is refused" if config.default_tenant is None else f"is of tenant {config.default_tenant}",
    )
