"""Tenant rules, slices, scaling, and ServeGen windows as a workload."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recording_outcomes import S, real_trace
from scipy import stats

from loadgen.trace.errors import TraceError
from loadgen.trace.public.detect import read_public
from loadgen.trace.public.servegen import generate, read_client, read_servegen
from loadgen.trace.rows import Measured, TraceRows
from loadgen.trace.tenant_rule import TenantRule
from loadgen.trace.transform import describe, scale, slice_rows, slice_time


def rows_at(arrivals, prompts=None, **changes):
    n = len(arrivals)
    fields = {
        "source": "test",
        "arrival_ns": np.array(arrivals, dtype=np.int64),
        "prompt_tokens": np.array(prompts if prompts is not None else [10] * n, dtype=np.int64),
        "output_tokens": np.full(n, 5, dtype=np.int64),
    }
    return TraceRows(**(fields | changes))


def named(rows):
    return [rows.tenants[code] for code in rows.tenant]


def test_round_robin_takes_rows_in_turn():
    assert named(TenantRule.parse("round_robin: a, b, c").apply(rows_at(range(5)))) == ["a", "b", "c", "a", "b"]


@settings(max_examples=50, deadline=None)
@given(weights=st.lists(st.integers(1, 9), min_size=1, max_size=4), n=st.integers(0, 60))
def test_weights_give_each_tenant_its_share_within_one_row_at_every_point(weights, n):
    """After any number of rows each tenant has weight/sum of them, within less than as many rows as there are tenants;
    no randomness."""
    text = "weights: " + ", ".join(f"t{i}={w}" for i, w in enumerate(weights))
    codes = TenantRule.parse(text).apply(rows_at(range(n))).tenant
    for end in range(1, n + 1):
        counts = np.bincount(codes[:end], minlength=len(weights))
        assert np.abs(counts - end * np.array(weights) / sum(weights)).max() < len(weights)
    full = sum(weights)
    if n >= full:
        assert np.bincount(codes[:full], minlength=len(weights)).tolist() == weights


def test_a_column_names_the_tenant():
    rows = rows_at(range(3), extra={"model": ("m1", "", "m1")})
    assert named(TenantRule.parse("column: model").apply(rows)) == ["m1", "default", "m1"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("prompt_tokens >= 1000: rag, chat", ["chat", "rag", "rag"]),
        ("prompt_tokens > 1000: rag, chat", ["chat", "chat", "rag"]),
        ("prompt_tokens < 1000: short", ["short", "default", "default"]),
        ("prompt_tokens == 1000: exact, other", ["other", "exact", "other"]),
    ],
)
def test_a_threshold_tells_tenants_apart(text, expected):
    assert named(TenantRule.parse(text).apply(rows_at(range(3), prompts=[999, 1000, 1001]))) == expected


@pytest.mark.parametrize(
    "text", ["", "round_robin:", "round_robin: a, a", "weights: a", "weights: a=0", "prompt_tokens ~ 3: a", "a >= x: b"]
)
def test_a_wrong_rule_shows_the_grammar(text):
    with pytest.raises(ValueError, match="write one of: round_robin"):
        TenantRule.parse(text)


def test_a_rule_on_a_missing_column_or_a_word_says_so():
    """The columns there are; or the row that is no number."""
    with pytest.raises(KeyError, match="there are: model, prompt_tokens, output_tokens"):
        TenantRule.parse("column: region").apply(rows_at([0], extra={"model": ("m",)}))
    with pytest.raises(ValueError, match="row 2, column 'size' holds 'big', not a number"):
        TenantRule.parse("size >= 3: a, b").apply(rows_at([0, 1], extra={"size": ("1", "big")}))


@settings(max_examples=50, deadline=None)
@given(
    arrivals=st.lists(st.integers(0, 10**13), min_size=1, max_size=50).map(sorted),
    speed=st.floats(0.01, 100, allow_nan=False),
)
def test_scaling_divides_every_gap_without_adding_up_rounding(arrivals, speed):
    """Each arrival is its exact place within 1 ns (of 10^13), so the whole span is exact too."""
    scaled = scale(rows_at(arrivals), speed).arrival_ns
    exact = (np.array(arrivals) - arrivals[0]) / speed + round(arrivals[0] / speed)
    assert np.abs(scaled - exact).max() <= 1 + exact.max() * 1e-15


def test_scaling_drops_what_was_measured_at_another_load():
    zero = np.zeros(1, dtype=np.int64)
    seen = Measured(sent_ns=zero, ttft_ns=zero, end_ns=zero, offsets_us=(zero,), ok=np.ones(1, dtype=bool))
    assert scale(rows_at([0], measured=seen), 2.0).measured is None
    with pytest.raises(ValueError, match="above 0"):
        scale(rows_at([0]), 0)


def test_a_slice_of_rows_begins_at_zero_and_a_slice_of_time_at_its_start():
    """A silence at the front of a slice of time is part of it."""
    rows = rows_at([0, 2 * S, 5 * S, 9 * S], prompts=[1, 2, 3, 4])
    by_row = slice_rows(rows, 1, 3)
    assert (by_row.arrival_ns.tolist(), by_row.prompt_tokens.tolist()) == ([0, 3 * S], [2, 3])
    by_time = slice_time(rows, 1.0, 9.0)
    assert (by_time.arrival_ns.tolist(), by_time.prompt_tokens.tolist()) == ([1 * S, 4 * S], [2, 3])
    with pytest.raises(ValueError, match="must end after it starts"):
        slice_time(rows, 3.0, 3.0)


def test_a_slice_keeps_measurements_on_their_rows():
    rows = read_public(real_trace("h200-vllm-0.24-llama-8b/open_r16.jsonl.gz"))
    part = slice_time(rows, 10.0, 20.0)
    whole = {o.request.arrival_ns - 10 * S: o for o in rows.outcomes()}
    for outcome in part.outcomes():
        twin = whole[outcome.request.arrival_ns]
        assert outcome.first_token_ns == twin.first_token_ns - 10 * S
        assert outcome.ended_ns == twin.ended_ns - 10 * S
        assert outcome.output_tokens == twin.output_tokens


def test_a_description_counts_what_is_there():
    found = describe(TenantRule.parse("round_robin: a, b").apply(rows_at([0, S, 2 * S, 3 * S], prompts=[1, 2, 3, 4])))
    assert (found["requests"], found["duration_s"], found["rate_per_s"], found["gap_cv"]) == (4, 3.0, 1.0, 0.0)
    assert [t["requests"] for t in found["tenants"]] == [2, 2]
    assert found["tenants"][1]["prompt_tokens"] == {"mean": 3.0, "p50": 2, "p99": 4, "max": 4}
    assert describe(rows_at([]))["rate_per_s"] is None


def servegen_client(tmp_path, windows, lengths=None):
    (tmp_path / "chunk-3-trace.csv").write_text("\n".join(windows) + "\n")
    if lengths is None:
        drawn = {"input_tokens": "{10: 0.25, 20: 0.75}", "output_tokens": "{7: 1.0}"}
        later = {"input_tokens": "{30: 1.0}", "output_tokens": "{8: 1.0}"}
        lengths = json.dumps({"0": {"input_tokens": "{}", "output_tokens": "{}"}, "600": drawn, "1200": later})
    (tmp_path / "chunk-3-dataset.json").write_text(lengths)
    return read_client(tmp_path / "chunk-3-trace.csv")


def test_servegen_windows_have_their_rate_and_an_empty_one_is_silent(tmp_path):
    """2/s for 600 s, silence, 1/s: the counts are exact, whatever the fitted scale."""
    client = servegen_client(tmp_path, ["0,2.0,1.5,Gamma,0.5,99", "600,0,0,,0,0", "1200,1.0,2,Weibull,0.7,0.001"])
    rows = generate([client], start_s=0, duration_s=1800, seed=1)
    window = rows.arrival_ns // (600 * S)
    assert Counter(window.tolist()) == {0: 1200, 2: 600}
    assert rows.tenants == ("client-3",)


def test_servegen_gaps_have_the_shape_of_their_pattern(tmp_path):
    """Normalised gaps of a Gamma window pass a Kolmogorov-Smirnov test against that Gamma, and fail against another."""
    client = servegen_client(tmp_path, ["0,20.0,1.5,Gamma,0.5,1"])
    gaps = np.diff(generate([client], start_s=0, duration_s=600, seed=3).arrival_ns) / S
    assert stats.kstest(gaps / gaps.mean(), stats.gamma(0.5, scale=2.0).cdf).pvalue > 0.01
    assert stats.kstest(gaps / gaps.mean(), stats.expon().cdf).pvalue < 1e-6


def test_servegen_lengths_come_from_the_latest_distribution_that_is_not_empty(tmp_path):
    """Before the first one, from the first."""
    client = servegen_client(tmp_path, [f"{start},5.0,1,Gamma,1,1" for start in (0, 600, 1200, 1800)])
    rows = generate([client], start_s=0, duration_s=2400, seed=5)
    first = rows.arrival_ns < 1200 * S
    assert set(rows.prompt_tokens[first].tolist()) == {10, 20}
    assert set(rows.output_tokens[first].tolist()) == {7}
    assert set(rows.prompt_tokens[~first].tolist()) == {30}
    drawn = int((rows.prompt_tokens[first] == 20).sum())
    assert stats.binomtest(drawn, int(first.sum()), 0.75).pvalue > 1e-4


def test_servegen_a_slice_is_a_part_of_the_whole(tmp_path):
    """Windows do not depend on those before them: the second ten minutes are the same alone."""
    client = servegen_client(tmp_path, ["0,2.0,1,Gamma,0.5,1", "600,2.0,1,Gamma,0.5,1"])
    whole = generate([client], start_s=0, duration_s=1200, seed=9)
    part = generate([client], start_s=600, duration_s=600, seed=9)
    later = whole.take(np.flatnonzero(whole.arrival_ns >= 600 * S))
    assert np.array_equal(part.arrival_ns, later.arrival_ns - 600 * S)
    assert np.array_equal(part.prompt_tokens, later.prompt_tokens)


def test_servegen_rate_factor_scales_the_load(tmp_path):
    client = servegen_client(tmp_path, ["0,2.0,1,Gamma,0.5,1"])
    assert len(generate([client], start_s=0, duration_s=600, rate_factor=1.5)) == 1800


def test_servegen_real_clients_send_at_the_rate_of_their_windows():
    """Sixteen clients over half an hour: each within one request a window of its file's rates."""
    clients = read_servegen(real_trace("servegen-msmall"))
    assert len(clients) == 16
    rows = generate(clients, start_s=36_000, duration_s=1800, seed=2)
    for code, client in enumerate(clients):
        windows = [w for w in client.windows if 36_000 <= w.start_s < 37_800]
        assert abs((rows.tenant == code).sum() - sum(w.rate * 600 for w in windows)) <= len(windows)


@pytest.mark.parametrize(
    ("windows", "lengths", "message"),
    [
        (["0,1,1,Gamma,1"], None, r"chunk-3-trace\.csv, row 1: 5 fields, 6 are expected"),
        (["0,1,1,Pareto,1,1"], None, r"row 1: pattern 'Pareto'"),
        (["0,x,1,Gamma,1,1"], None, r"row 1: not a number"),
        (["600,1,1,,1,1", "0,1,1,,1,1"], None, r"row 2: windows must be in order"),
        (
            ["0,1,1,,1,1"],
            '{"0": {"input_tokens": "__import__(1)", "output_tokens": "{}"}}',
            r"column '0\.input_tokens': not a",
        ),
        (
            ["0,1,1,,1,1"],
            '{"0": {"input_tokens": "{1: 0.5}", "output_tokens": "{1: 1}"}}',
            r"probabilities sum to 0\.5000",
        ),
        (["0,1,1,,1,1"], '{"0": {"input_tokens": "{}", "output_tokens": "{}"}}', r"its dataset has no lengths"),
    ],
)
def test_servegen_errors_name_file_row_and_column(tmp_path, windows, lengths, message):
    """And a dataset is parsed as data: an expression in it is refused, not run."""
    with pytest.raises(TraceError, match=message):
        servegen_client(tmp_path, windows, lengths)


def test_a_folder_without_clients_is_refused(tmp_path):
    with pytest.raises(TraceError, match=r"no chunk-N-trace\.csv here"):
        read_servegen(tmp_path)
