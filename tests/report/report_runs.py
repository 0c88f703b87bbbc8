"""Runs for the tests of the report: outcomes through the real recorder and the real summary, and a strict HTML reader."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import numpy as np

from loadgen.offline.verdicts import Figure, PolicyVerdict, TenantVerdict
from loadgen.recorder import Recorder
from loadgen.summary import summarise
from loadgen.trace.schema import TraceMetadata
from scheduler.request import ErrorClass, Outcome, Request, Status
from tenants.measures.intervals import Interval
from tenants.slo import Metric, Objective, Slo
from tenants.tenant import Tenant

MS = 1_000_000
S = 1_000_000_000
WINDOW = (10 * S, 310 * S)
END = 320 * S


def ok(request_id, tenant, arrival_ns, *, queue_ms=2, server_ms=40, gap_ms=10):
    sent = arrival_ns + queue_ms * MS
    first = sent + server_ms * MS
    offsets = np.arange(4, dtype=np.int64) * gap_ms * 1000
    last = first + 3 * gap_ms * MS
    return Outcome(
        request=Request(id=request_id, tenant=tenant, arrival_ns=arrival_ns, prompt_tokens=100),
        status=Status.OK,
        ended_ns=last,
        enqueued_ns=arrival_ns,
        dispatched_ns=sent,
        connect_ns=0,
        sent_ns=sent,
        first_token_ns=first,
        last_token_ns=last,
        finished_ns=last,
        prompt_tokens=100,
        output_tokens=4,
        chunk_offsets_us=offsets,
    )


def lost(request_id, tenant, arrival_ns, *, status=Status.UNFINISHED, error=ErrorClass.UNFINISHED, age_ms=30_000):
    return Outcome(
        request=Request(id=request_id, tenant=tenant, arrival_ns=arrival_ns, prompt_tokens=100),
        status=status,
        error_class=error,
        enqueued_ns=arrival_ns,
        ended_ns=arrival_ns + age_ms * MS,
    )


def slo(ttft_ms=500, attainment=0.9):
    return Slo(ttft_ns=ttft_ms * MS, attainment=attainment)


def spread(tenant, n, start_id=0, **options):
    """``n`` requests that ended OK, at even distances over the window."""
    step = (WINDOW[1] - WINDOW[0]) // n
    return [ok(start_id + i, tenant, WINDOW[0] + i * step, **options) for i in range(n)]


def recorder_of(tenants, outcomes, **metadata):
    defaults = {"end_ns": END, "policy": "wfq", "seed": 7, "window_ns": WINDOW}
    recorder = Recorder(tenants, WINDOW, metadata=TraceMetadata(**(defaults | metadata)))
    for outcome in outcomes:
        recorder.on_outcome(outcome)
    return recorder


def busy_recorder(**metadata):
    """chat keeps its SLO, batch breaks it (most of it never ends), brief has too few requests for a verdict, and free
    was promised nothing."""
    tenants = [
        Tenant(name="chat", slo=slo()),
        Tenant(name="batch", slo=slo()),
        Tenant(name="brief", slo=Slo(objectives=(Objective(metric=Metric.TTFT, percentile=99.0, limit_ns=80 * MS),))),
        Tenant(name="free"),
    ]
    outcomes = spread("chat", 600, queue_ms=5)
    outcomes += spread("batch", 200, 1000, queue_ms=300)
    outcomes += [lost(2000 + i, "batch", WINDOW[0] + i * S, age_ms=30_000) for i in range(280)]
    outcomes += [
        lost(3000 + i, "batch", WINDOW[0] + i * S, status=Status.SHED, error=ErrorClass.SHED, age_ms=0)
        for i in range(20)
    ]
    outcomes += spread("brief", 5, 4000)
    outcomes += spread("free", 40, 5000)
    return recorder_of(tenants, outcomes, **metadata)


def busy_summary(**metadata):
    return summarise(busy_recorder(**metadata), plan={"name": "office", "seed": 7})


def over_seeds(value, half=None, *, bound=False):
    interval = None if half is None else Interval(value, value - half, value + half, "t over 5 seeds", 5)
    return Figure(value, interval, bound)


def policy_verdict(label, attainment, *, decay=1.0, bound=False, half=0.002, tenants=("chat", "rag"), hit_share=None):
    """``attainment``: that of every tenant under the raised load."""
    one = TenantVerdict(
        ttft_p50=over_seeds(100e6, 5e6),
        ttft_p99=over_seeds(400e6, 20e6, bound=bound),
        e2e_p50=over_seeds(2e9, 1e8),
        e2e_p99=over_seeds(5e9, 1e8),
        attainment=over_seeds(attainment, half),
        goodput=over_seeds(8.5, 0.1),
        hit_share=over_seeds(hit_share),
    )
    figure = over_seeds(attainment, half)
    return PolicyVerdict(
        label=label,
        decay_all=over_seeds(decay, half),
        decay_in_contract=over_seeds(decay, half, bound=bound),
        e2e_decay_all=over_seeds(decay, half),
        e2e_decay_in_contract=over_seeds(decay, half),
        rho=over_seeds(1 - 1 / decay, half),
        rho_clipped=over_seeds(max(1 - 1 / decay, 0), half),
        worst_attainment=figure,
        mean_attainment=figure,
        throughput=over_seeds(4905.0, 12.0 if half else None),
        throughput_ratio=over_seeds(1.0, half),
        jain=over_seeds(0.99, half),
        baseline=dict.fromkeys(tenants, one),
        raised=dict.fromkeys(tenants, one),
    )


_VOID = frozenset({"meta", "br", "link", "img", "input", "hr"})


class Html(HTMLParser):
    """Reads a whole document and keeps what tests ask: attributes, ids, texts by element. Raises AssertionError when an
    element is closed that is not the open one."""

    def __init__(self, source):
        super().__init__(convert_charrefs=True)
        self.open = []
        self.elements = []
        self.text = []
        self.raw = {}
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing, line {self.getpos()[0]}"
        assert self.open[-1][0] == tag, f"</{tag}> closes <{self.open[-1][0]}>, line {self.getpos()[0]}"
        self.open.pop()

    def handle_data(self, data):
        if not self.open:
            return
        tag, attrs = self.open[-1]
        if tag in {"script", "style"}:
            key = attrs.get("id", tag)
            self.raw[key] = self.raw.get(key, "") + data
        else:
            self.text.append(data)

    @property
    def words(self):
        """All visible text, with single spaces."""
        return " ".join(" ".join(self.text).split())

    @property
    def figures(self):
        return json.loads(self.raw["figures"])

    def values(self, attribute):
        return [attrs[attribute] for _, attrs in self.elements if attribute in attrs]
