"""Cases for the engine's own process (support/in_engine/policy_probe.py), and what they gave."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

SCRIPT = Path(__file__).with_name("in_engine") / "policy_probe.py"
ROOT = Path(__file__).resolve().parents[3]
_TIMEOUT_S = 900.0
_POLITENESS = "10"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request; lengths in tokens."""

    id: str
    tenant: str | None
    prompt: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """``config``: the text of a YAML configuration, or None for vLLM's own scheduler; see the script for the rest."""

    config: str | None
    requests: list[Ask]
    engine: dict[str, int]
    abort_at: dict[int, list[str]] = field(default_factory=dict)
    steps: int | None = None
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """``log``: (step, request id, new tokens, finish reason or None), as they were given."""

    log: list[tuple[int, str, int, str | None]]
    scheduler: str
    preemptions: int
    left: list[str]

    @property
    def tokens(self) -> Counter[str]:
        """Output tokens by request id."""
        counted: Counter[str] = Counter()
        for _, request_id, new_tokens, _ in self.log:
            counted[request_id] += new_tokens
        return counted

    @property
    def first_served(self) -> list[str]:
        """Ids in the order of their first token."""
        return list(dict.fromkeys(request_id for _, request_id, new_tokens, _ in self.log if new_tokens))

    @property
    def ends(self) -> dict[str, str]:
        """Finish reason by id, in the order in which they ended."""
        return {request_id: reason for _, request_id, _, reason in self.log if reason is not None}


def run_cases(python: Path, model: Path, folder: Path, cases: dict[str, Case]) -> dict[str, Answer]:
    """All in one process of the engine's python, one engine after the other."""
    given = []
    for name, case in cases.items():
        config = None
        if case.config is not None:
            config = folder / f"{name}.yaml"
            config.write_text(case.config, encoding="utf-8")
        given.append(
            {
                "name": name,
                "config": None if config is None else str(config),
                "engine": case.engine,
                "requests": [
                    {"id": ask.id, "tenant": ask.tenant, "prompt": ask.prompt, "tokens": ask.tokens}
                    for ask in case.requests
                ],
                "abort_at": case.abort_at,
                "steps": case.steps,
                "ahead": case.ahead,
            }
        )
    asked, answered = folder / "cases.json", folder / "answers.json"
    asked.write_text(json.dumps(given), encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if k not in {"PYTHONHOME", "VIRTUAL_ENV"}}
    done = subprocess.run(
        ["nice", "-n", _POLITENESS, str(python), str(SCRIPT), str(model), str(asked), str(answered)],
        env=environment
        | {
            "PYTHONPATH": str(ROOT),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        last = "\n".join(done.stdout.splitlines()[-40:])
        raise RuntimeError(f"{SCRIPT.name} ended with {done.returncode}; its last words:\n{last}")
    found = json.loads(answered.read_text(encoding="utf-8"))
    return {
        name: Answer([tuple(entry) for entry in a["log"]], a["scheduler"], a["preemptions"], a["left"])
        for name, a in found.items()
    }
