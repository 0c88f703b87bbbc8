"""Errors that a command expects, by what they mean for the exit code. Anything else is a fault of lmperf's own."""

from __future__ import annotations

from backends.emulator.process import EmulatorProcessError
from backends.protocol import BackendError
from lmperf.scenario.faults import ScenarioError
from lmperf.wiring.comparison_file import ComparisonFileError
from lmperf.wiring.prompting import TokenizerError
from lmperf.wiring.sources import SourceError
from loadgen.offline.worker import NoWorkerError, WorkerDiedError
from loadgen.summary.files import SummaryError
from loadgen.trace.errors import TraceError
from loadgen.workers.crew import WorkerError
from scheduler.calibration.step_law import CalibrationError
from scheduler.drivers.errors import SimulationError
from scheduler.event_log import EventLogError
from scheduler.policies.build import PolicyError
from scheduler.server_model.spec import ServerModelError
from tenants.registry import RegistryError
from tenants.thresholds import ThresholdError

BAD_CONFIGURATION: tuple[type[Exception], ...] = (
    ScenarioError,
    SourceError,
    TokenizerError,
    TraceError,
    SummaryError,
    ComparisonFileError,
    ServerModelError,
    CalibrationError,
    SimulationError,
    EventLogError,
    PolicyError,
    RegistryError,
    ThresholdError,
    NoWorkerError,
)
STOPPED: tuple[type[Exception], ...] = (WorkerDiedError,)
"""By something outside, in the middle: what was found and written before stays."""

UNUSABLE_BACKEND: tuple[type[Exception], ...] = (BackendError, EmulatorProcessError, WorkerError)
