"""GuideLLM beside lmperf: what its result file says, and how its requests are found in the server's truth."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.client_cost import TOKENS, require_all
from benchmarks.client_harness import BenchError, FastServer
from benchmarks.client_peers import Measured, guidellm_read
from benchmarks.client_truth import compare, table
from benchmarks.fast_server import Truth

MS = 1_000_000


def _row(answer_id: str, *, ttft_ms: float, itl_ms: float, latency_s: float, chunks: int) -> dict[str, Any]:
    """A successful request as GuideLLM 0.8 writes it, without what is not read. The usage chunk said 100 tokens."""
    return {
        "type_": "generative_request_stats",
        "request_id": "5f0c7a3e-0000-4000-8000-000000000000",
        "response_id": answer_id,
        "info": {"status": "completed", "timings": {"request_iterations": chunks + 2, "token_iterations": chunks}},
        "output_metrics": {"text_tokens": 100, "total_tokens": 100},
        "output_tokens": 100,
        "request_latency": latency_s,
        "time_to_first_token_ms": ttft_ms,
        "inter_token_latency_ms": itl_ms,
    }


def _write(folder: Path, rows: list[dict[str, Any]]) -> None:
    requests = {"successful": rows, "errored": [], "incomplete": [], "total": None}
    told = {"metadata": {"version": 2, "guidellm_version": "0.8.1"}, "benchmarks": [{"requests": requests}]}
    (folder / "guidellm.json").write_text(json.dumps(told))


def _truth(answer_id: str, token_ms: list[float], *, client_id: str | None = None) -> Truth:
    """A request received at 1,000 ms whose tokens came ``token_ms`` later."""
    tokens_ns = [round((1000 + after) * MS) for after in token_ms]
    return Truth(client_id, answer_id, 1000 * MS, tokens_ns, None, finished=True)


def test_a_result_file_gives_durations_in_ns_and_the_mean_gap(tmp_path: Path) -> None:
    _write(tmp_path, [_row("chatcmpl-1", ttft_ms=62.5, itl_ms=10.25, latency_s=1.125, chunks=100)])
    (row,) = guidellm_read(tmp_path)
    assert row.key == "chatcmpl-1"
    assert row.ttft_ns == pytest.approx(62.5e6)
    assert row.e2e_ns == pytest.approx(1.125e9)
    assert row.itl_ns.tolist() == pytest.approx([10.25e6])
    assert row.first_ns is None


def test_tokens_received_are_counted_from_chunks_not_from_the_servers_usage(tmp_path: Path) -> None:
    """A request whose usage chunk says 100 but of which 60 chunks came is not whole, and the run is refused."""
    whole = _row("chatcmpl-1", ttft_ms=60, itl_ms=10, latency_s=1.1, chunks=TOKENS)
    _write(tmp_path, [whole, _row("chatcmpl-2", ttft_ms=60, itl_ms=10, latency_s=1.1, chunks=60)])
    measured = guidellm_read(tmp_path)
    assert [row.gaps for row in measured] == [TOKENS - 1, 59]
    require_all("GuideLLM", measured, requests=1)
    with pytest.raises(BenchError, match="all 100 tokens of 1 requests where 2 were asked for"):
        require_all("GuideLLM", measured, requests=2)


def test_a_client_that_keeps_gaps_is_counted_by_them() -> None:
    require_all("other", [Measured("1", 1.0, 2.0, np.ones(TOKENS - 1))], requests=1)
    with pytest.raises(BenchError, match="of 0 requests where 1 were asked for"):
        require_all("other", [Measured("1", 1.0, 2.0, np.ones(TOKENS - 2))], requests=1)


def test_a_mean_gap_is_compared_with_the_true_mean_and_its_p99_with_that_of_the_true_gaps() -> None:
    """Gaps of 10, 10 and 40 ms have the mean 20: a client that says 20.5 is 0.5 ms off, and 20.5 is the P99 that it shows."""
    measured = [Measured("chatcmpl-7", 53.0 * MS, 112.5 * MS, np.array([20.5 * MS]), mean_of=3)]
    errors = compare(measured, [_truth("chatcmpl-7", [50, 60, 70, 110])])
    assert errors.itl.tolist() == pytest.approx([0.5])
    assert errors.ttft.tolist() == pytest.approx([3.0])
    assert errors.e2e.tolist() == pytest.approx([2.5])
    assert errors.itl_p99_shift == pytest.approx(20.5 - float(np.percentile([10, 10, 40], 99)))
    assert "0.50 / 0.50m" in table({"GuideLLM": errors})


def test_a_mean_over_another_number_of_tokens_is_not_compared() -> None:
    measured = [Measured("chatcmpl-7", 53.0 * MS, 112.5 * MS, np.array([20.5 * MS]), mean_of=2)]
    assert not len(compare(measured, [_truth("chatcmpl-7", [50, 60, 70, 110])]).itl)


def test_the_answers_id_joins_only_requests_that_had_none_of_their_own() -> None:
    measured = [Measured("chatcmpl-7", 53.0 * MS, 112.5 * MS, np.array([20.5 * MS]), mean_of=3)]
    with pytest.raises(BenchError, match="chatcmpl-7"):
        compare(measured, [_truth("chatcmpl-7", [50, 60, 70, 110], client_id="bench-3")])


def _ask(connection: http.client.HTTPConnection, headers: dict[str, str]) -> set[str]:
    """The ids in the chunks of one answer of 3 tokens."""
    body = json.dumps({"model": "fast", "stream": True, "max_tokens": 3, "messages": []})
    connection.request("POST", "/v1/chat/completions", body, headers)
    lines = connection.getresponse().read().splitlines()
    return {json.loads(line[6:])["id"] for line in lines if line.startswith(b"data: {")}


def test_with_a_truth_a_request_without_an_id_is_answered_under_one_of_its_own(tmp_path: Path) -> None:
    """Also on a connection whose last request had an id."""
    flags = ("--first-ms", "1", "--gap-ms", "1", "--role-ms", "1")
    with FastServer(*flags, truth=tmp_path / "truth.jsonl") as server:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
        seen = [_ask(connection, headers) for headers in ({"x-request-id": "mine-5"}, {}, {})]
        connection.close()
        truths = server.truth()
    assert [truth.client_id for truth in truths] == ["mine-5", None, None]
    assert [{truth.answer_id} for truth in truths] == seen
    assert len({truth.answer_id for truth in truths}) == 3
