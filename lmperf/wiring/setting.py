"""What one trial of a search sets: policy, slots, weights and admission limits over a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lmperf.scenario.load import Scenario
from lmperf.wiring.variants import under_policy, with_queue_limits, with_slots, with_weights
from loadgen.offline.cell import slots_data
from loadgen.offline.experiment import PolicyChoice
from scheduler.auto_rule import AutoRule, Follows
from scheduler.slots import Slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What one trial sets; weights are factors and queue limits requests, by group of tenants. ``auto``: what moves the
    slots, which start at ``slots``; None: they are fixed."""

    policy: PolicyChoice
    slots: Slots
    auto: AutoRule | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    queued: Mapping[str, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Distinct for distinct settings."""
        sequences = _or_all(self.slots.sequences) if self.auto is None else _moved(self.auto)
        parts = [self.policy.label, f"D={sequences}", f"X={_or_all(self.slots.prefill_tokens)}"]
        parts += [f"{name} weight x{factor:g}" for name, factor in self.weights.items()]
        parts += [f"{name} queue <= {most}" for name, most in self.queued.items()]
        return ", ".join(parts)

    def of(self, scenario: Scenario) -> Scenario:
        """The scenario under this setting."""
        variant = under_policy(scenario, replace(self.policy, slots=None))
        variant = with_queue_limits(with_slots(variant, self.slots, self.auto), self.queued)
        return with_weights(variant, self.weights) if self.weights else variant

    def data(self) -> dict[str, object]:
        """Plain data, for files."""
        return {
            "policy": self.policy.policy,
            "options": dict(self.policy.options),
            "slots": slots_data(self.slots, self.auto, {}),
            "weight_factors": dict(self.weights),
            "max_queued": dict(self.queued),
        }


def _moved(rule: AutoRule) -> str:
    return f"auto by {'TPOT' if rule.follows is Follows.TPOT else 'waiting'} ({rule.least} to {rule.most})"


def _or_all(limit: int | None) -> str:
    return "all" if limit is None else str(limit)
