"""Terminal tables: readable at 100 columns and without colour; honest about what was not reached."""

from __future__ import annotations

import io

import pytest
from recording_outcomes import MS, S, finished, shed, unfinished
from rich.console import Console

from loadgen.recorder import Recorder
from loadgen.summary import summarise
from loadgen.summary.schema import AttainmentSummary, Percentile
from loadgen.table import (
    attainment_text,
    latency_text,
    tenant_table,
)
from loadgen.trace.schema import TraceMetadata
from tenants.slo import Slo
from tenants.tenant import Tenant


def plain(renderable) -> str:
    text = io.StringIO()
    Console(file=text, width=100, color_system=None).print(renderable)
    return text.getvalue()


def summary_of(*rows, names=("chat", "rag"), **metadata):
    tenants = [Tenant(name=name, slo=Slo(ttft_ns=50 * MS, attainment=0.9)) for name in names]
    recorder = Recorder(tenants, (1 * S, 301 * S), metadata=TraceMetadata(**metadata))
    for row in rows:
        recorder.on_outcome(row)
    return summarise(recorder)


BUSY = [finished(i, arrival_ns=2 * S) for i in range(1200)] + [
    unfinished(2000 + i, "rag", arrival_ns=2 * S, age_ns=30 * S) for i in range(12)
]


def test_the_title_says_which_loop_and_what_was_measured():
    assert "open loop, measured 1.0 s to 301.0 s, policy wfq" in plain(tenant_table(summary_of(policy="wfq")))
    closed = summary_of(load_mode="closed", queueing="target")
    assert "closed loop, measured 1.0 s to 301.0 s, queueing: target" in plain(tenant_table(closed))


def test_a_row_reads_whole_at_100_columns_without_colour():
    """No figure and no verdict is cut, and the verdict is a word."""
    text = plain(tenant_table(summary_of(*BUSY, shed(5000, "rag", arrival_ns=3 * S))))
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "\x1b" not in text
    chat = next(line.split() for line in text.splitlines() if line.strip().startswith("chat"))
    assert chat[:3] == ["chat", "1,200", "1,200/0/0"]
    assert chat[-1] in {"kept", "undecided", "BROKEN"}
    rag = next(line.split() for line in text.splitlines() if line.strip().startswith("rag"))
    assert rag[:3] == ["rag", "13", "0/12/1"]
    assert "…" not in text


def test_the_hit_share_has_a_column_where_a_request_states_it():
    """Rounded; a tenant that says nothing of its cache has none; still at most 100 columns."""
    stated = [finished(i, arrival_ns=2 * S, cached_prompt_tokens=64) for i in range(1200)]
    text = plain(tenant_table(summary_of(*stated, finished(5000, "rag", arrival_ns=2 * S))))
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "hit share" in text.splitlines()[2]
    chat, rag = (
        next(line.split() for line in text.splitlines() if line.strip().startswith(n)) for n in ("chat", "rag")
    )
    assert chat[-3] == "63.4%"
    assert rag[-3] == "-"
    assert "hit share" not in plain(tenant_table(summary_of(*BUSY)))


def test_a_percentile_that_was_never_reached_prints_a_bound():
    """``> age``, never a number that looks measured."""
    assert "> 30,000" in plain(tenant_table(summary_of(*BUSY)))


def test_an_invalid_run_has_a_banner_above_its_table():
    summary = summary_of(*(finished(i, arrival_ns=2 * S, late_ns=80 * MS) for i in range(10)))
    text = plain(tenant_table(summary))
    assert text.lstrip().startswith("INVALID RUN: the generator itself fell behind")


@pytest.mark.parametrize(
    ("value_ms", "beyond_ms", "text"),
    [
        (7.314, None, "7.31"),
        (84.21, None, "84.2"),
        (1204.4, None, "1,204"),
        (None, 30000.0, "> 30,000"),
        (None, None, "-"),
    ],
)
def test_latencies_have_about_three_digits(value_ms, beyond_ms, text):
    assert latency_text(Percentile(p=99, value_ms=value_ms, beyond_ms=beyond_ms)) == text


@pytest.mark.parametrize(("met", "total", "text"), [(99996, 100000, "99.9%"), (1, 1, "100.0%"), (993, 1000, "99.3%")])
def test_attainment_is_cut_and_not_rounded(met, total, text):
    """99.996% is not 100%."""
    attained = AttainmentSummary(met=met, total=total, share=met / total, target=0.99, interval=None, budget_spent=None)
    assert attainment_text(attained) == text
