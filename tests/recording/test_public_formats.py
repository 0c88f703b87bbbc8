"""Readers of public formats: exact times and counts, places in errors, detection by content; on real files and by
hand."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recording_outcomes import MS, S, finished, real_trace

from loadgen.trace.convert import convert, write_trace
from loadgen.trace.errors import TraceError
from loadgen.trace.public import access_log
from loadgen.trace.public.detect import FORMATS, detect, read_public
from loadgen.trace.read import read_any
from loadgen.trace.reader import read_trace
from loadgen.trace.rows import UNKNOWN
from loadgen.trace.schema import TraceMetadata
from loadgen.trace.transform import scale, slice_rows

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def lines(*objects: object) -> str:
    return "".join(json.dumps(o) + "\n" for o in objects)


def file_of(tmp_path, text, name="trace"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_azure_times_keep_their_hundred_nanosecond_ticks(tmp_path):
    """2023 has seven digits without an offset, 2024 six with one; nothing is cut off."""
    text = AZURE + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:46.6805901,1,2\n2023-11-16 18:15:47,3,4\n"
    rows = read_public(file_of(tmp_path, text))
    assert rows.arrival_ns.tolist() == [0, 100, 319_410_000]
    newer = AZURE + "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 02:00:00.010017+02:00,2399,6\n"
    rows = read_public(file_of(tmp_path, newer))
    assert rows.arrival_ns.tolist() == [0, 87_000]
    assert rows.prompt_tokens.tolist() == [2162, 2399]


@settings(max_examples=50, deadline=None)
@given(us=st.integers(0, 3_000_000_000_000_000), tick=st.integers(0, 9))
def test_azure_times_agree_with_the_standard_library(tmp_path_factory, us, tick):
    """To the microsecond with Python's own calendar, and the seventh digit on top."""
    path = tmp_path_factory.mktemp("azure") / "a.csv"
    moment = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
    stamp = moment.strftime("%Y-%m-%d %H:%M:%S.%f")
    path.write_text(f"{AZURE}2000-01-01 00:00:00,1,1\n{stamp}{tick},1,1\n")
    assert read_public(path).arrival_ns[1] == us * 1000 + tick * 100


def test_azure_real_file_has_every_row_and_the_span_of_its_first_and_last_time():
    """Both real files, against the standard csv module."""
    for name, n in (("AzureLLMInferenceTrace_code.csv", 8819), ("AzureLLMInferenceTrace_conv.csv.gz", 19366)):
        path = real_trace(f"azure-llm-2023/{name}")
        rows = read_public(path)
        text = (gzip.decompress(path.read_bytes()) if name.endswith("gz") else path.read_bytes()).decode()
        raw = list(csv.DictReader(text.splitlines()))
        assert len(rows) == len(raw) == n
        assert rows.prompt_tokens.sum() == sum(int(row["ContextTokens"]) for row in raw)
        ticks = sorted(row["TIMESTAMP"] for row in raw)
        span = datetime.fromisoformat(ticks[-1][:26]) - datetime.fromisoformat(ticks[0][:26])
        exact = span.seconds * S + span.microseconds * 1000 + (int(ticks[-1][26]) - int(ticks[0][26])) * 100
        assert rows.arrival_ns[-1] == exact


def test_burstgpt_with_and_without_sessions(tmp_path):
    """A response of 0 tokens is a failure whose length is unknown; model and kind are columns for rules."""
    plain = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
    )
    rows = read_public(file_of(tmp_path, plain + "45.25,GPT-4,1087,0,1087,API log\n"))
    assert rows.arrival_ns.tolist() == [0, 40_250 * MS]
    assert rows.output_tokens.tolist() == [18, -1]
    assert rows.column("model") == ("ChatGPT", "GPT-4")
    assert next(iter(read_public(tmp_path / "trace").requests())).target_output_tokens == 18
    newer = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    rows = read_public(file_of(tmp_path, newer + "19440110.0,abc,43,GPT-4,906,446,1352,Conversation log\n"))
    assert rows.session == ("abc",)


def test_mooncake_blocks_are_kept_with_their_size(tmp_path):
    """Times in ms; equal hashes of 512-token blocks are a shared prefix."""
    rows = read_public(
        file_of(
            tmp_path,
            lines(
                {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]},
                {"timestamp": 27, "input_length": 1025, "output_length": 6, "hash_ids": [0, 2, 3]},
            ),
        )
    )
    assert rows.arrival_ns.tolist() == [0, 27 * MS]
    assert [request.prefix_blocks for request in rows.requests()] == [(0, 1), (0, 2, 3)]
    assert rows.metadata().prefix_block_tokens == 512


def test_mooncake_real_file():
    """12,031 rows over an hour; every prompt is covered by its blocks of 512."""
    rows = read_public(real_trace("mooncake-fast25/conversation_trace.jsonl.gz"))
    assert (rows.source, len(rows)) == ("mooncake", 12031)
    blocks = np.array([len(b) for b in rows.prefix_blocks])
    assert (blocks == -(-rows.prompt_tokens // 512)).all()


def test_bailian_sessions_hang_on_their_root(tmp_path):
    """Blocks of 16 tokens, times in s; a chat whose parent is not in the file begins its own session."""

    def chat(i, parent, t, turn):
        return {
            "chat_id": i,
            "parent_chat_id": parent,
            "timestamp": t,
            "input_length": 20,
            "output_length": 3,
            "type": "text",
            "turn": turn,
            "hash_ids": [1, 2],
        }

    rows = read_public(
        file_of(tmp_path, lines(chat(7, -1, 0.5, 1), chat(9, 7, 61.114, 2), chat(11, 9, 70, 3), chat(20, 15, 80, 4)))
    )
    assert rows.source == "bailian"
    assert rows.arrival_ns.tolist() == [500 * MS, 61_114 * MS, 70 * S, 80 * S]
    assert rows.session == ("7", "7", "7", "20")
    assert rows.turn.tolist() == [1, 2, 3, 4]
    assert rows.prefix_block_tokens == 16


def test_sessions_and_blocks_go_through_a_file_of_ours(tmp_path):
    """What is sliced, scaled or replayed from it still shares its prefixes; a row without any has none."""

    def chat(number, **more):
        told = {"chat_id": number, "parent_chat_id": -1, "timestamp": number, "input_length": 20, "output_length": 3}
        return {**told, "type": "text", "turn": 1, "hash_ids": [1, 1 + number], **more}

    text = lines(chat(1), chat(2, parent_chat_id=1, turn=2), chat(3, hash_ids=[]))
    public = read_public(file_of(tmp_path, text))
    convert(public, tmp_path / "whole.parquet")
    ours = read_any(tmp_path / "whole.parquet")
    convert(scale(slice_rows(ours, 1), 2.0), tmp_path / "part.parquet")
    for found, wanted in ((ours, public), (read_any(tmp_path / "part.parquet"), public.take(np.array([1, 2])))):
        assert found.session == wanted.session
        assert found.turn.tolist() == wanted.turn.tolist()
        assert found.prefix_blocks == wanted.prefix_blocks
        assert found.prefix_block_tokens == 16


def test_blocks_of_an_unknown_size_are_no_blocks(tmp_path):
    """Nobody can say which tokens they stand for."""
    text = lines({"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]})
    convert(replace(read_public(file_of(tmp_path, text)), prefix_block_tokens=None), tmp_path / "t.parquet")
    assert read_any(tmp_path / "t.parquet").prefix_blocks == ()


def test_sharegpt_lengths_real_file():
    """600 rows of two models, which a tenant rule can tell apart."""
    rows = read_public(real_trace("sharegpt-lengths/sharegpt_300_lengths.csv"))
    assert len(rows) == 600
    assert rows.arrival_ns[0] == 46_926_808
    assert set(rows.column("model")) == {"llama-3.1-8b", "qwen3-32b"}


@pytest.mark.parametrize(
    ("name", "n", "mode"), [("open_r16", 480, "open"), ("closed_c8", 160, "closed"), ("long_r6", 240, "open")]
)
def test_captures_become_a_trace_whose_figures_are_the_capture_s(tmp_path, name, n, mode):
    """Arrival = sent; TTFT, TPOT = sum(itl)/(tokens - 1) and E2E of every row against the raw lines, within 1 us."""
    path = real_trace(f"h200-vllm-0.24-llama-8b/{name}.jsonl.gz")
    raw = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()[1:]]
    rows = read_public(path)
    assert convert(rows, tmp_path / "t.parquet") == n
    trace = read_trace(tmp_path / "t.parquet")
    assert (trace.metadata.load_mode, trace.metadata.kind) == (mode, "imported")
    columns = trace.columns()
    assert columns.ttft_ns.tolist() == [round(row["ttft_s"] * 1e9) for row in raw]
    tpot = [sum(row["itl_ms"]) / (row["output_tokens"] - 1) * 1e6 for row in raw]
    assert columns.tpot_ns == pytest.approx(tpot, abs=600)
    e2e = [row["ttft_s"] * 1e9 + sum(row["itl_ms"]) * 1e6 for row in raw]
    assert columns.e2e_ns == pytest.approx(e2e, abs=600)
    gaps = np.array([gap for row in raw for gap in row["itl_ms"]])
    assert trace.gaps().gap_ns == pytest.approx(gaps * 1e6, abs=1001)
    one_each = sum(len(row["itl_ms"]) for row in raw if len(row["itl_ms"]) + 1 == row["output_tokens"])
    assert (trace.gaps().tokens > 0).sum() == one_each


VLLM = {
    "date": "20260101-000000",
    "request_rate": 5.0,
    "max_concurrency": 2,
    "duration": 3.0,
    "completed": 2,
    "total_input_tokens": 30,
    "request_throughput": 0.7,
    "input_lens": [10, 20, 30, 40],
    "output_lens": [3, 4, 0, 0],
    "ttfts": [0.05, 0.06, 0.0, 0.04],
    "itls": [[0.01, 0.01], [0.03], [], [0.02]],
    "start_times": [1000.0, 1000.5, 0.0, 1001.5],
    "errors": ["", "", "connection refused", "stream cut"],
    "generated_texts": ["", "", "", ""],
}


def test_vllm_bench_results(tmp_path):
    """Chunks may be fewer than tokens; a failure is no success; one that never started stands where the one before it
    did."""
    rows = read_public(file_of(tmp_path, json.dumps(VLLM)))
    assert rows.arrival_ns.tolist() == [0, 500 * MS, 500 * MS, 1500 * MS]
    assert rows.load_mode == "open"
    statuses = [str(outcome.status) for outcome in rows.outcomes()]
    assert statuses == ["ok", "ok", "failed", "failed"]
    _, second, third, fourth = rows.outcomes()
    assert (second.tokens_known, second.output_tokens, len(second.chunk_offsets_us)) == (False, 4, 2)
    assert (third.first_token_ns, third.output_tokens) == (None, None)
    assert fourth.first_token_ns == 1540 * MS
    convert(rows, tmp_path / "t.parquet")
    assert len(read_trace(tmp_path / "t.parquet")) == 4


def test_vllm_bench_queue_time_belongs_to_the_latency(tmp_path):
    """A request that waited 0.4 s for a slot arrived 0.4 s before it was started: leaving that out is coordinated
    omission."""
    rows = read_public(file_of(tmp_path, json.dumps(VLLM | {"queue_times": [0.0, 0.4, 0.0, 0.0]})))
    second = list(rows.outcomes())[1]
    assert second.request.arrival_ns == 100 * MS
    assert second.first_token_ns - second.request.arrival_ns == 460 * MS


def test_vllm_bench_without_details_says_which_flag_is_missing(tmp_path):
    detailed = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors")
    short = {name: value for name, value in VLLM.items() if name not in detailed}
    with pytest.raises(
        TraceError, match=r"no input_lens, .*start_times, errors: was it written without --save-detailed\?"
    ):
        read_public(file_of(tmp_path, json.dumps(short)))


def test_vllm_bench_without_one_list_does_not_ask_for_a_flag_that_was_given(tmp_path):
    short = {name: value for name, value in VLLM.items() if name != "start_times"}
    with pytest.raises(TraceError, match=r"no start_times: was it written by an older vLLM\?"):
        read_public(file_of(tmp_path, json.dumps(short)))


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"itls": 5}, r"column 'itls': 5: a list is expected"),
        ({"queue_times": [0.0]}, r"column 'queue_times': 1 entries, start_times has 4"),
        ({"latencies": [0.1] * 5}, r"column 'latencies': 5 entries, start_times has 4"),
        ({"itls": [[0.01], [1e10], [], []]}, r"row 2, column 'itls': gaps that come to more than a time can hold"),
        ({"itls": [[0.01], 0.02, [], []]}, r"row 2, column 'itls': a list of gaps"),
        ({"start_times": [1.0, None, 3.0, 4.0]}, r"row 2, column 'start_times': None is not a time"),
        ({"start_times": [1.0, 1e12, 3.0, 4.0]}, r"row 2, column 'start_times': .* is not a time"),
        ({"start_times": [-9.0, 1.0, 3.0, 4.0]}, r"row 1, column 'start_times': -9.0 s: no such time is below 0"),
        (
            {"start_times": [1e6, 1e6 + 500, 0.0, 1e6 + 2000]},
            r"column 'start_times': they span .* s, and the run took 3",
        ),
        ({"ttfts": [0.1, -0.1, 0.0, 0.1]}, r"row 2, column 'ttfts': -0.1 s: no such time is below 0"),
        ({"input_lens": [10, 500_000_000, 1, 1]}, r"row 2, column 'input_lens': 500,000,000: no server"),
    ],
)
def test_vllm_bench_lists_that_cannot_be_are_errors(tmp_path, changed, place):
    """By list and entry, never a traceback or a guess: a time in the wrong place would move what a law is fitted to."""
    with pytest.raises(TraceError, match=place):
        read_public(file_of(tmp_path, json.dumps(VLLM | changed)))


def test_vllm_bench_an_answered_request_may_start_at_zero(tmp_path):
    """Only a failed one that was never stamped stands where the one before it did."""
    rows = read_public(file_of(tmp_path, json.dumps(VLLM | {"start_times": [3.0, 0.0, 0.0, 4.0]})))
    assert sorted(rows.arrival_ns.tolist()) == [0, 0, 3 * S, 4 * S]


def test_vllm_bench_closed_loop(tmp_path):
    """Users who wait: an infinite rate with a concurrency."""
    assert read_public(file_of(tmp_path, json.dumps(VLLM | {"request_rate": "inf"}))).load_mode == "closed"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (AZURE + "2023-11-16 18:15:46,374,44\n2023-11-16 18:15:47,many,1\n", r"row 3, column 'ContextTokens': 'many'"),
        (AZURE + "yesterday,374,44\n", r"row 2, column 'TIMESTAMP': 'yesterday' is not an ISO 8601 time"),
        (AZURE + "2023-11-16 18:15:46,3\n", r"row 2: 2 fields, the header has 3"),
        (lines({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0]}) + "{\n", r"row 2: not JSON"),
        (
            lines({"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [0, 1, 2]}),
            r"row 1, column 'hash_ids': 3 blocks of 512 tokens for 513 prompt tokens",
        ),
        (
            lines({"meta": {}}, {"sent_s": 0, "prompt_tokens": 1, "output_tokens": 2}),
            r"row 2, column 'ttft_s': missing",
        ),
        (
            lines({"meta": {}}, {"sent_s": 0, "prompt_tokens": 1, "output_tokens": 2, "ttft_s": 1, "itl_ms": [-1]}),
            r"row 2, column 'itl_ms': a list of gaps >= 0",
        ),
    ],
)
def test_errors_name_the_row_and_column(tmp_path, text, place):
    """So that the line can be found and mended."""
    with pytest.raises(TraceError, match=place):
        read_public(file_of(tmp_path, text))


NO_COUNTS = [str(1 << 70), str((1 << 32) + 5), "-4", "1.5", "NaN", "1e999999999"]


@pytest.mark.parametrize("told", NO_COUNTS)
@pytest.mark.parametrize("form", ["azure", "burstgpt", "sharegpt", "map", "mooncake", "capture", "vllm_bench"])
def test_a_count_that_cannot_be_is_unknown(tmp_path, form, told):
    """In every format, and in our own file that the rows become: the row stays, and the one count is not told."""
    number = told if told in {"NaN", "1e999999999"} else json.loads(told)
    text = {
        "azure": AZURE + f"2023-11-16 18:15:46,{told},{told}\n",
        "burstgpt": f"Timestamp,Model,Request tokens,Response tokens\n1,m,{told},{told}\n",
        "sharegpt": f"model,arrival_s,input_toks,output_toks\nm,0,{told},{told}\n",
        "map": f"ts,in,out\n0,{told},{told}\n",
        "mooncake": lines({"timestamp": 0, "input_length": number, "output_length": number, "hash_ids": [1, 2]}),
        "capture": lines(
            {"meta": {}}, {"sent_s": 0, "prompt_tokens": number, "output_tokens": number, "ttft_s": 1, "itl_ms": [5]}
        ),
        "vllm_bench": json.dumps(VLLM | {"input_lens": [number] * 4, "output_lens": [number] * 4}),
    }[form]
    file = file_of(tmp_path, text)
    mapping = access_log.parse_map("arrival=ts,prompt_tokens=in,output_tokens=out")
    rows = access_log.read(file, mapping) if form == "map" else read_public(file)
    assert len(rows) > 0
    assert set(rows.prompt_tokens) == set(rows.output_tokens) == {UNKNOWN}
    convert(rows, tmp_path / "t.parquet")
    assert set(read_any(tmp_path / "t.parquet").output_tokens) == {UNKNOWN}


def test_a_turn_that_cannot_be_is_an_error(tmp_path):
    """It is no count that a server tells: the row and what would be right are named."""
    mapping = access_log.parse_map("arrival=t,turn=n")
    with pytest.raises(TraceError, match=r"row 2, column 'n': '-1' is not a whole number from 0 to 2,147,483,647"):
        access_log.read(file_of(tmp_path, "t,n\n0,-1\n"), mapping)


@pytest.mark.parametrize("told", [1 << 62, (1 << 32) + 5, -7])
def test_a_trace_of_ours_that_tells_what_cannot_be(tmp_path, told):
    """Another tool may have written it: its counts are null, and its columns hold no count that wrapped."""
    path = tmp_path / "t.parquet"
    write_trace(path, [finished(n, output_tokens=3) for n in range(2)], TraceMetadata(end_ns=S))
    table = pq.read_table(path)
    for name in ("prompt_tokens", "cached_prompt_tokens", "output_tokens"):
        place = table.column_names.index(name)
        table = table.set_column(place, table.schema.field(name), pa.array([told] * len(table), pa.int64()))
    pq.write_table(table, path)
    read = read_trace(path)
    for name in ("prompt_tokens", "cached_prompt_tokens", "output_tokens"):
        assert set(read.values(name)) == {None}
    assert set(read_any(path).prompt_tokens) == {UNKNOWN}


def test_a_cut_off_gzip_is_an_error_and_not_a_short_trace(tmp_path):
    """Reading what is there would silently drop the rest."""
    data = gzip.compress((AZURE + "2023-11-16 18:15:46,3,4\n" * 5000).encode())
    path = tmp_path / "a.csv.gz"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(TraceError, match=r"cut off or damaged|cannot be read"):
        read_public(path)


def test_detection_is_by_content_and_lists_what_is_known(tmp_path):
    """The name says nothing; an unknown file gets the list of formats and the way out."""
    assert detect(file_of(tmp_path, AZURE, "x.parquet")).name == "azure"
    with pytest.raises(TraceError) as caught:
        detect(file_of(tmp_path, "when,who\n1,2\n"))
    message = str(caught.value)
    assert all(form.name in message for form in FORMATS)
    assert "lmperf trace import --map" in message
    with pytest.raises(ValueError, match="known: azure, burstgpt"):
        read_public(tmp_path / "trace", "nonsense")
    with pytest.raises(TraceError, match="no such file"):
        detect(tmp_path / "nowhere")


def test_rows_out_of_order_are_sorted(tmp_path):
    """A log is written at the end of each request: arrivals come out of order in it."""
    text = AZURE + "2023-11-16 18:15:48,2,2\n2023-11-16 18:15:46,1,1\n"
    rows = read_public(file_of(tmp_path, text))
    assert rows.prompt_tokens.tolist() == [1, 2]
    assert rows.arrival_ns.tolist() == [0, 2 * S]


def test_any_csv_by_a_map(tmp_path):
    """Our names on its columns; the rest stays for tenant rules; an empty count is unknown."""
    text = "ts,key,in,out,region\n1700000000.25,alice,10,20,eu\n1700000000.75,bob,,7,us\n"
    mapping = access_log.parse_map("arrival=ts, tenant=key, prompt_tokens=in, output_tokens=out")
    rows = access_log.read(file_of(tmp_path, text), mapping)
    assert rows.tenants == ("alice", "bob")
    assert rows.arrival_ns.tolist() == [0, 500 * MS]
    assert rows.prompt_tokens.tolist() == [10, -1]
    assert rows.column("region") == ("eu", "us")


def test_any_jsonl_by_a_map_with_nested_names_and_iso_times(tmp_path):
    text = lines(
        {"at": "2026-01-01T00:00:01.5Z", "usage": {"prompt": 3, "completion": 4}, "conversation": 5},
        {"at": "2026-01-01T01:00:02+01:00", "usage": {"prompt": 5, "completion": None}, "conversation": None},
    )
    mapping = access_log.parse_map(
        "arrival=at,prompt_tokens=usage.prompt,output_tokens=usage.completion,session=conversation"
    )
    rows = access_log.read(file_of(tmp_path, text), mapping)
    assert rows.arrival_ns.tolist() == [0, 500 * MS]
    assert rows.output_tokens.tolist() == [4, -1]
    assert rows.session == ("5", "")


@pytest.mark.parametrize(
    ("unit", "factor"), [("arrival", S), ("arrival_ms", MS), ("arrival_us", 1000), ("arrival_ns", 1)]
)
def test_the_unit_of_an_arrival_is_in_its_name(tmp_path, unit, factor):
    rows = access_log.read(file_of(tmp_path, "t,n\n0,1\n12345,1\n"), access_log.parse_map(f"{unit}=t,prompt_tokens=n"))
    assert rows.arrival_ns.tolist() == [0, 12345 * factor]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arrival", "not NAME=COLUMN"),
        ("when=ts", "NAME of: arrival, arrival_ms"),
        ("tenant=key", "exactly one of arrival"),
        ("arrival=a,arrival_ms=b", "exactly one of arrival"),
        ("arrival=a,arrival=b", "given twice"),
    ],
)
def test_a_wrong_map_says_what_would_be_right(text, message):
    with pytest.raises(ValueError, match=message):
        access_log.parse_map(text)


def test_a_map_to_a_column_that_is_not_there_names_those_that_are(tmp_path):
    with pytest.raises(TraceError, match=r"row 2, column 'nope': no such column; this row has: n, t"):
        access_log.read(file_of(tmp_path, "t,n\n0,1\n"), access_log.parse_map("arrival=t,tenant=nope"))


def test_an_imported_workload_replays_as_it_was(tmp_path):
    """Through our own file and back: same arrivals, tenants and lengths, and nothing that nobody measured."""
    text = "ts,key,in,out\n0,alice,10,20\n1.5,bob,30,40\n"
    mapping = access_log.parse_map("arrival=ts,tenant=key,prompt_tokens=in,output_tokens=out")
    rows = access_log.read(file_of(tmp_path, text), mapping)
    convert(rows, tmp_path / "t.parquet")
    replayed = list(read_trace(tmp_path / "t.parquet").requests())
    assert [msgspec.structs.replace(request) for request in replayed] == list(rows.requests())
