"""From a scenario file to a checked scenario; every fault at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from lmperf.scenario.checks import run_faults
from lmperf.scenario.document import Document, document_from_data, parse_document, read_document
from lmperf.scenario.faults import Fault, Path, ScenarioError
from lmperf.scenario.field_faults import field_faults
from lmperf.scenario.known import Known
from lmperf.scenario.model import ScenarioModel
from lmperf.scenario.overrides import apply_overrides
from lmperf.scenario.secrets import Secrets, take_secrets
from lmperf.scenario.shape import expand_all
from lmperf.scenario.tenant_checks import tenant_faults
from lmperf.scenario.view import View


@dataclass(frozen=True, slots=True)
class Scenario:
    """A sound scenario. ``document``: its data with places, for faults that only show later (a missing variable, a
    missing file). ``warnings``: what is allowed and should be said.
    """

    model: ScenarioModel
    document: Document
    secrets: Secrets
    warnings: tuple[Fault, ...] = ()


def load_scenario(
    file: FilePath | str, *, overrides: Sequence[str] = (), known: Known | None = None, traffic: bool = True
) -> Scenario:
    """The scenario in ``file`` with the ``--set`` settings ``overrides``. Raises ScenarioError with every fault.

    ``traffic`` False: tenants need not say what they send (a gateway's do not).
    """
    return _checked(read_document(FilePath(file)), overrides, known, traffic=traffic)


def scenario_from_text(
    text: str,
    *,
    file: str = "<text>",
    overrides: Sequence[str] = (),
    known: Known | None = None,
    traffic: bool = True,
) -> Scenario:
    """As :func:`load_scenario`, from YAML text; relative files are relative to the current folder."""
    return _checked(parse_document(text, file=file), overrides, known, traffic=traffic)


def scenario_from_data(
    data: Mapping[str, Any],
    *,
    file: str = "<command line>",
    flags: Mapping[Path, str] | None = None,
    overrides: Sequence[str] = (),
    known: Known | None = None,
    traffic: bool = True,
) -> Scenario:
    """As :func:`load_scenario`, from data that flags made; ``file`` is what faults name as its place, or that of ``flags``
    which gave the value.
    """
    return _checked(document_from_data(dict(data), file=file, flags=flags), overrides, known, traffic=traffic)


def _checked(document: Document, overrides: Sequence[str], known: Known | None, *, traffic: bool) -> Scenario:
    document = apply_overrides(document, overrides)
    document = document.with_data(expand_all(document.data))
    document, secrets, secret_faults, warnings = take_secrets(document)
    faults = [*document.faults, *secret_faults]
    try:
        model = ScenarioModel.model_validate(document.data)
    except ValidationError as error:
        model = None
        faults.extend(field_faults(error, document))
    view = View(document, known or Known(), traffic=traffic)
    faults.extend(run_faults(view))
    faults.extend(tenant_faults(view))
    if faults or model is None:
        raise ScenarioError(faults)
    if not model.name:
        stem = FilePath(document.file).stem if document.folder is not None else "scenario"
        model = model.model_copy(update={"name": stem.removesuffix(".resolved")})
    return Scenario(model, document, secrets, tuple(warnings))
