"""``scenario.resolved.yaml``: a scenario that runs the same thing again, wherever it lies, without any secret.

Defaults that depended on something else (the kind of backend, the policy, the slots, the saturation) are written out;
files by their absolute paths; secrets as references.
"""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from lmperf.scenario.base import Part
from lmperf.scenario.document import lookup
from lmperf.scenario.faults import Path as KeyPath
from lmperf.scenario.load import Scenario
from lmperf.scenario.plan import Plan
from lmperf.scenario.server_model import SlotsModel
from lmperf.scenario.traffic_model import ArrivalsModel

_HEADER = """\
# The scenario of a finished run, with every default and override written out. It runs again as it is:
#     lmperf run {file}
"""
_VARIABLES = "# Secrets are references. Set before a run: {names}\n"

# Their defaults are not neutral: written out, they would contradict what else the scenario says.
_ONLY_AS_STATED = (ArrivalsModel, SlotsModel)


def resolved_yaml(scenario: Scenario, plan: Plan, *, file: str = "scenario.resolved.yaml") -> str:
    """The text of a resolved scenario."""
    data = _stated(scenario.model)
    _absolute_files(scenario, data)
    data["name"], data["seed"] = plan.name, plan.seed
    backend = data["backend"]
    backend["kind"] = plan.backend.kind
    for key, value in (("url", plan.backend.url), ("server_model", plan.backend.server_model)):
        if value is not None:
            backend[key] = value
    data["policy"] = {"name": plan.policy.name, **plan.policy.options}
    _slots(data, plan)
    data["load"] |= {"at": plan.at.value, "growth": plan.growth.value}
    if plan.saturation is not None:
        data["load"]["saturation"] = plan.saturation
    # Tenants of several groups are noisy only by their own raised loads, which are in the data already.
    if len({t.group for t in plan.tenants if t.tenant.name in plan.noisy}) == 1:
        data["load"]["noisy"] = _name_of_all(plan.noisy, plan)
    names = scenario.secrets.variables()
    header = _HEADER.format(file=file) + (_VARIABLES.format(names=", ".join(names)) if names else "")
    return header + to_yaml(data)


def to_yaml(data: dict[str, Any]) -> str:
    """Plain data as YAML 1.2 text that reads back the same."""
    yaml = YAML(pure=True)
    yaml.width = 120
    yaml.default_flow_style = False
    out = StringIO()
    yaml.dump(data, out)
    return out.getvalue()


def _name_of_all(names: tuple[str, ...], plan: Plan) -> str:
    """The tenant, or the group that ``names`` are."""
    return next(t.group for t in plan.tenants if t.tenant.name == names[0]) if len(names) > 1 else names[0]


def _slots(data: dict[str, Any], plan: Plan) -> None:
    slots = plan.slots
    data.pop("slots", None)
    if not plan.policy.queues:
        return
    stated: dict[str, Any] = {"sequences": slots.sequences, "prefill_tokens": slots.prefill_tokens}
    if slots.auto is not None:
        stated |= {"auto": slots.auto.value, "min_sequences": slots.least, "max_sequences": slots.most}
    data["slots"] = stated


def _stated(part: Part) -> dict[str, Any]:
    """The part as plain data: what is stated, and defaults that say something."""
    as_json = part.model_dump(mode="json")
    data: dict[str, Any] = dict(part.model_extra or {})
    for name in type(part).model_fields:
        value = getattr(part, name)
        given = name in part.model_fields_set
        if not given and (isinstance(part, _ONLY_AS_STATED) or isinstance(value, _ONLY_AS_STATED)):
            continue
        if not given and value in (None, False, "", [], {}):
            continue
        data[name] = _plain(value, as_json[name])
    return data


def _plain(value: object, as_json: object) -> object:
    if isinstance(value, Part):
        return _stated(value)
    if isinstance(value, dict):
        return {key: _stated(child) if isinstance(child, Part) else child for key, child in value.items()}
    if isinstance(value, list):
        return [_stated(child) if isinstance(child, Part) else child for child in value]
    return as_json


def _absolute_files(scenario: Scenario, data: dict[str, Any]) -> None:
    paths: list[KeyPath] = [("backend", "ca_file"), ("backend", "tokenizer"), ("trace", "path")]
    paths.extend(("tenants", group, "lengths_file", "path") for group in scenario.model.tenants)
    for path in paths:
        name = lookup(data, path)
        if isinstance(name, str):
            file = (scenario.document.folder_of(path) / Path(name).expanduser()).resolve()
            lookup(data, path[:-1])[path[-1]] = str(file)
