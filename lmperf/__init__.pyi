from lmperf.exit_codes import ExitCode as ExitCode
from lmperf.scenario.faults import ScenarioError as ScenarioError
from lmperf.scenario.load import Scenario as Scenario
from lmperf.scenario.load import load_scenario as load_scenario
from lmperf.scenario.plan import Plan as Plan
from lmperf.scenario.resolve import resolve as resolve
from loadgen.summary.files import read_summary as read_summary
from loadgen.trace.reader import read_trace as read_trace
from scheduler.dispatcher import Dispatcher as Dispatcher
from scheduler.dispatcher_config import DispatcherConfig as DispatcherConfig
from scheduler.drivers.simulated import Simulation as Simulation
from scheduler.policy import Policy as Policy
from scheduler.request import Outcome as Outcome
from scheduler.request import Request as Request
from scheduler.server_model.spec import ServerModelSpec as ServerModelSpec
from tenants.measures.histogram import Histogram as Histogram
from tenants.slo import Slo as Slo
from tenants.tenant import Tenant as Tenant

__version__: str
