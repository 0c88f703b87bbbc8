"""Every request can be found in a server's log: ``x-request-id`` is unique, ends in the trace's id, and is the tenant's own
if it brings one."""

from __future__ import annotations

from loadgen.live.calls import REQUEST_ID_HEADER, CallMaker, TenantWire
from loadgen.workload.prompts import WordPrompts
from scheduler.request import Request


def request(number: int, tenant: str = "plain") -> Request:
    return Request(id=number, tenant=tenant, arrival_ns=0, prompt_tokens=4, max_tokens=1)


WIRES = {
    "plain": TenantWire(model="m", endpoint="chat"),
    "own": TenantWire(model="m", endpoint="chat", headers={"X-Request-Id": "mine"}),
}


def test_an_id_ends_in_the_id_of_the_trace_row() -> None:
    """What stands after the last dash is the request's id."""
    calls = CallMaker(WIRES, WordPrompts())
    for number in (0, 7, 1 << 40):
        assert calls.make(request(number)).headers[REQUEST_ID_HEADER].rpartition("-")[2] == str(number)


def test_two_runs_never_send_the_same_id() -> None:
    """An engine refuses an id that it is serving already, so two runs against one server must differ."""
    first, second = CallMaker(WIRES, WordPrompts()), CallMaker(WIRES, WordPrompts())
    assert first.make(request(1)).headers[REQUEST_ID_HEADER] != second.make(request(1)).headers[REQUEST_ID_HEADER]


def test_a_run_can_be_named() -> None:
    calls = CallMaker(WIRES, WordPrompts(), run="night")
    assert calls.make(request(12)).headers[REQUEST_ID_HEADER] == "night-12"


def test_a_tenants_own_id_header_stands_whatever_its_case() -> None:
    headers = CallMaker(WIRES, WordPrompts()).make(request(1, "own")).headers
    assert {name.lower(): value for name, value in headers.items()}[REQUEST_ID_HEADER] == "mine"
    assert sum(name.lower() == REQUEST_ID_HEADER for name in headers) == 1
