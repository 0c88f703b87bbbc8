"""What is installed here, as scenarios are checked against it."""

from __future__ import annotations

from backends.registry import BACKENDS
from lmperf.scenario.checks import EMBEDDED
from lmperf.scenario.known import Known
from scheduler.policies.build import POLICIES, PolicyContext, build_policy

NO_POLICY = "none"


def installed() -> Known:
    """Names and checks of the installed policies, backends and server models."""
    return Known(
        policies=(NO_POLICY, *POLICIES.names()),
        backends=(EMBEDDED, *BACKENDS.names()),
        check_policy=lambda name, options: build_policy(name, options, PolicyContext()),
    )
