"""The prompt builder that fits a target, and how each tenant's requests look on the wire there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from backends.emulator.tokenizer import chat_added
from backends.protocol import AddedTokens, BackendError
from lmperf.scenario.checks import EMBEDDED
from lmperf.scenario.load import Scenario
from lmperf.scenario.plan import Plan
from lmperf.wiring.targets import Target, call_timeouts
from loadgen.live.calls import TenantWire
from loadgen.workload.fitted_prompts import RatioPrompts, TokenizerPrompts
from loadgen.workload.prompts import PromptBuilder, WordPrompts
from scheduler.request import Request

_TRIALS = 24
_NOTHING = AddedTokens(0, 0)
_ENCODE_TIMEOUT_S = 30.0


class TokenizerError(ValueError):
    """A local tokenizer that cannot be used; the message says which and why."""


async def prompts_for(target: Target, plan: Plan, block_tokens: int) -> tuple[PromptBuilder, str]:
    """A builder, and a sentence for people that says how exact its lengths are."""
    if plan.backend.kind == EMBEDDED:
        added = chat_added() if target.endpoint == "chat" else _NOTHING
        words = WordPrompts(
            seed=plan.seed, block_tokens=block_tokens, overhead_tokens=added.total, behind_tokens=added.behind
        )
        return words, "exact prompt lengths (the embedded server counts words)"
    if plan.backend.tokenizer is not None:
        encode = local_encode(plan.backend.tokenizer)
        return await asyncio.to_thread(_fit, encode, plan.seed, block_tokens, _NOTHING, "the local tokenizer")
    if target.capabilities.tokenize:
        try:
            # The chat template, or a BOS.
            added = await target.backend.added_tokens(target.model, target.endpoint)
            encode = _encode_on(target, asyncio.get_running_loop())
            return await asyncio.to_thread(_fit, encode, plan.seed, block_tokens, added, "the server's tokenizer")
        except BackendError:
            # A server that lists /tokenize and does not serve it is treated like one without.
            pass
    ratio = RatioPrompts(seed=plan.seed, block_tokens=block_tokens)
    return ratio, "approximate prompt lengths (no tokenizer: name one with --tokenizer DIR)"


def _fit(
    encode: Callable[[str], list[int]], seed: int, block_tokens: int, added: AddedTokens, whose: str
) -> tuple[PromptBuilder, str]:
    """Exact prompts if the tokenizer has words of one token each; runs in a thread, since encoding may need the loop."""
    prompts = TokenizerPrompts(
        encode, seed=seed, block_tokens=block_tokens, overhead_tokens=added.total, behind_tokens=added.behind
    )
    for i in range(_TRIALS):
        prompts.build(Request(id=-1 - i, tenant="", arrival_ns=0, prompt_tokens=added.total + 16 + 29 * i))
        if not prompts.exact_words:
            break
    if prompts.exact_words:
        return prompts, f"exact prompt lengths ({whose})"
    sample = "the quick brown fox jumps over the lazy dog " * 40
    ratio = len(sample) / max(1, prompts.count(sample))
    fitted = RatioPrompts(
        seed=seed,
        block_tokens=block_tokens,
        overhead_tokens=added.total,
        behind_tokens=added.behind,
        characters_per_token=ratio,
    )
    return fitted, f"prompt lengths by a ratio of {ratio:.2f} characters a token ({whose} has no words of one token)"


def _encode_on(target: Target, loop: asyncio.AbstractEventLoop) -> Callable[[str], list[int]]:
    def encode(text: str) -> list[int]:
        return asyncio.run_coroutine_threadsafe(target.backend.encode(text), loop).result(_ENCODE_TIMEOUT_S)

    return encode


def local_encode(folder: str) -> Callable[[str], list[int]]:
    """The encoder of a local ``tokenizer.json`` (a file, or the folder that holds it); nothing is fetched."""
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 (optional: only a named tokenizer needs it)
    except ImportError as error:
        raise TokenizerError("--tokenizer needs the package tokenizers: pip install 'lmperf[hf]'") from error
    path = Path(folder)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise TokenizerError(f"no tokenizer at {file}: name a folder with a tokenizer.json, or the file itself")
    tokenizer = Tokenizer.from_file(str(file))

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return encode


def wires_of(plan: Plan, scenario: Scenario, target: Target) -> dict[str, TenantWire]:
    """How each tenant's requests look, secrets resolved. Raises ScenarioError for a variable that is not set."""
    wires = {}
    real = target.emulator is None
    for planned in plan.tenants:
        identity = planned.tenant.identity
        resolve = scenario.secrets.resolve
        wires[planned.tenant.name] = TenantWire(
            model=identity.model or target.model,
            endpoint=target.endpoint,
            api_key=None if identity.api_key is None else resolve(identity.api_key),
            headers={name: resolve(value) for name, value in identity.headers.items()},
            base_url=None if identity.base_url is None else resolve(identity.base_url),
            extra_body=identity.extra_body,
            ignore_eos=plan.backend.ignore_eos and target.capabilities.ignore_eos is not False,
            send_priority=plan.policy.name == "priority" and target.capabilities.priority is True,
            return_token_ids=real and target.capabilities.return_token_ids is True,
            timeouts=call_timeouts(planned.timeouts),
        )
    return wires
