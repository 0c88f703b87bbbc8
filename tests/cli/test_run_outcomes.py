"""What a run comes to: 0, 98, 99, 106 and 107, each with a message that a script's owner understands."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest
from cli_support import FAST_MODEL, invoke, served, start, summary_of, two_tenants, until

import backends.openai
import loadgen.live.calls
from lmperf.wiring.results import RunResult
from loadgen.summary.files import read_summary
from loadgen.trace.reader import read_trace
from scheduler.auto_slots import AutoSlots

SMALL = ("--num-prompts", "4", "--random-input-len", "8", "--random-output-len", "4", "--quiet")


def run_scenario(text, tmp_path, *flags):
    (tmp_path / "s.yaml").write_text(text)
    return invoke("run", "s.yaml", "--output-dir", "r", "--quiet", *flags, cwd=tmp_path)


def test_a_run_that_keeps_its_slos_exits_with_0(finished):
    """Limits of a minute on a server of milliseconds."""
    folder, done = finished
    assert done.returncode == 0, done
    assert summary_of(folder)["total"]["attainment"]["share"] == 1.0


def test_undecided_is_98_only_when_asked_for(url, tmp_path):
    """A dozen requests decide no target of 99.9%: 0, and 98 with --strict; the word on the screen is the same."""
    text = two_tenants(url, duration_s=0.2).replace("attainment: 0.9}", "attainment: 0.999}")
    lax = run_scenario(text, tmp_path)
    strict = run_scenario(text, tmp_path, "--strict")
    assert (lax.returncode, strict.returncode) == (0, 98)
    assert "undecided" in lax.stdout
    assert summary_of(tmp_path / "r")["verdict"] == "undecided"


def test_rates_of_a_run_that_its_number_of_requests_ended_are_per_second_of_the_run(url, tmp_path):
    """20 requests of about a third of a second, planned over 20 s: some 60 a second, not 1."""
    done = run_scenario(two_tenants(url, duration_s=20, extra="num_prompts: 20"), tmp_path)
    assert done.returncode == 0, done
    summary = summary_of(tmp_path / "r")
    start_s, end_s = summary["window_s"]
    last_s = max(row.ended_ns for row in read_trace(tmp_path / "r").outcomes()) / 1e9
    assert end_s == pytest.approx(last_s, abs=0.5)
    assert summary["total"]["throughput"]["requests_per_s"] == pytest.approx(20 / (end_s - start_s))


@pytest.mark.parametrize(("threshold", "code"), [("median(ttft) < 0.001ms", 99), ("median(ttft) < 60000ms", 0)])
def test_a_broken_threshold_is_99(url, tmp_path, threshold, code):
    """The scenario's own thresholds decide, and are shown with their outcome."""
    done = run_scenario(two_tenants(url, duration_s=0.2, extra=f"thresholds: ['{threshold}']"), tmp_path)
    assert done.returncode == code, done
    assert f"threshold {threshold}: {'FAILED' if code else 'passed'}" in done.stdout


@pytest.mark.parametrize(
    ("verdict", "valid", "interrupted", "strict", "code"),
    [
        ("kept", True, False, True, 0),
        ("broken", True, False, False, 99),
        ("undecided", True, False, False, 0),
        ("undecided", True, False, True, 98),
        ("broken", False, False, True, 107),
        ("undecided", False, False, True, 107),
        ("broken", False, True, True, 105),
        ("kept", True, True, False, 105),
    ],
)
def test_the_precedence_of_codes(finished, verdict, valid, interrupted, strict, code):
    """105, 107, 99, 98: an interrupt before an invalid run before a broken SLO before an open one."""
    summary = read_summary(finished[0])
    validity = msgspec.structs.replace(summary.validity, valid=valid)
    result = RunResult(msgspec.structs.replace(summary, verdict=verdict, validity=validity), (), None, interrupted)
    assert result.exit_code(strict=strict) == code


def test_an_invalid_run_is_107_whatever_else_it_found(url, tmp_path, monkeypatch):
    """A generator that needs 30 ms to build a request's body delays what it measures: its figures are its own. The run
    says so in a banner, in the summary and in the report, and a broken threshold does not hide it."""
    build = backends.openai.build_call

    def slow(*args, **more):
        threading.Event().wait(0.03)
        return build(*args, **more)

    monkeypatch.setattr(loadgen.live.calls, "build_call", slow)
    done = invoke(
        *("run", "--model", url, "--concurrency", "2", "--output-dir", "r", *SMALL),
        *("--num-prompts", "12", "--set", "thresholds=['median(ttft) < 0.001ms']"),
        cwd=tmp_path,
    )
    assert done.returncode == 107, done
    assert "INVALID RUN: the generator itself fell behind" in done.stdout
    summary = summary_of(tmp_path / "r")
    assert not summary["validity"]["valid"]
    assert summary["lateness"]["p99_ms"] >= 30
    assert "fell behind" in (tmp_path / "r/report.html").read_text()


# -- servers that cannot be used -------------------------------------------------------------------------------------


@contextmanager
def web_server(answers):
    """An HTTP server on a real socket; ``answers(method, path)`` gives (status, content type, body)."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self):
            self.rfile.read(int(self.headers.get("content-length") or 0))
            status, kind, body = answers(self.command, self.path)
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_OPTIONS = _answer  # noqa: N815 (the names that http.server looks for)

        def log_message(self, *_):
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def unusable(done, *words):
    """106, one message, no traceback, and nothing that looks like a result."""
    assert done.returncode == 106, done
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
    assert "summary.json" not in done.stdout


def test_a_refused_port_is_106(tmp_path):
    """Nobody listens: after --ready-timeout the URL, how long it was waited for, and the reason."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        done = invoke(
            "run", "--model", f"127.0.0.1:{port}", "--ready-timeout", "0.2", "--output-dir", "r", *SMALL, cwd=tmp_path
        )
    unusable(done, f"127.0.0.1:{port}", "0.2 s", "refused")


def test_a_server_of_another_kind_is_106(tmp_path):
    """A web page where the list of models should be: not an OpenAI-compatible server."""
    with web_server(lambda _m, _p: (200, "text/html", b"<h1>hello</h1>")) as url:
        done = invoke("run", "--model", url, "--output-dir", "r", *SMALL, cwd=tmp_path)
    unusable(done, url, "not an OpenAI-compatible server")


def test_a_wrong_key_is_106(tmp_path):
    """A server that wants a key: without one, and with a wrong one; the message names the flag and not the key."""
    with served(tmp_path, "--api-key-env", "SERVER_KEY", env={"SERVER_KEY": "right-key-123"}) as url:
        for flags in ((), ("--api-key", "wrong-key-456")):
            done = invoke("run", "--model", url, "--output-dir", "r", *flags, *SMALL, cwd=tmp_path)
            unusable(done, "401", "--api-key")
            assert "wrong-key-456" not in done.stderr + done.stdout
        done = invoke("run", "--model", url, "--api-key", "right-key-123", "--output-dir", "r", *SMALL, cwd=tmp_path)
        assert done.returncode in {0, 107}


def test_an_unknown_model_is_106(url, tmp_path):
    """The served ones are listed."""
    done = invoke("run", "--base-url", url, "--model", "gpt-17", "--output-dir", "r", *SMALL, cwd=tmp_path)
    unusable(done, "gpt-17", "fast-model")


def test_a_server_that_refuses_every_stream_is_106_and_quotes_it(tmp_path):
    """Models are listed, every completion is refused: all requests failed for the same reason, in the server's words, on
    the screen and in the summary."""
    models = b'{"object": "list", "data": [{"id": "m", "object": "model"}]}'
    refusal = b'{"error": {"message": "streaming is not enabled here", "type": "invalid_request_error"}}'

    def answers(method, path):
        if path == "/v1/models":
            return 200, "application/json", models
        if method == "POST":
            return 400, "application/json", refusal
        return 404, "text/plain", b""

    with web_server(answers) as url:
        done = invoke("run", "--model", url, "--output-dir", "r", *SMALL, cwd=tmp_path)
    assert done.returncode == 106, done
    assert "Traceback" not in done.stderr
    assert "4 requests failed with http_4xx" in done.stdout
    assert "streaming is not enabled here" in done.stdout
    assert summary_of(tmp_path / "r")["total"]["error_classes"] == {"http_4xx": 4}


@pytest.mark.parametrize("told", [1 << 70, (1 << 32) + 5, -4], ids=["70 bits", "33 bits", "below 0"])
def test_counts_that_no_answer_can_have_are_not_told(tmp_path, told):
    """A server whose usage is nonsense: every request is served and written down, without those counts, in the rows and in
    the figures."""
    usage = {"prompt_tokens": told, "completion_tokens": told, "prompt_tokens_details": {"cached_tokens": told}}
    chunks = [
        {"choices": [{"index": 0, "delta": {"content": word}, "text": word, "finish_reason": None}]} for word in "abcd"
    ]
    chunks[-1]["choices"][0]["finish_reason"] = "length"
    events = [f"data: {json.dumps(chunk)}\n\n" for chunk in [*chunks, {"choices": [], "usage": usage}]]
    stream = "".join([*events, "data: [DONE]\n\n"]).encode()

    def answers(method, path):
        if path == "/v1/models":
            return 200, "application/json", b'{"object": "list", "data": [{"id": "m", "object": "model"}]}'
        return (200, "text/event-stream", stream) if "completions" in path else (404, "text/plain", b"")

    with web_server(answers) as url:
        done = invoke("run", "--model", url, "--output-dir", "r", *SMALL, cwd=tmp_path)
    assert done.returncode in {0, 107}, done
    trace = read_trace(tmp_path / "r")
    assert trace.values("status") == ["ok"] * 4
    assert set(trace.values("output_tokens")) == set(trace.values("cached_prompt_tokens")) == {None}
    assert trace.values("prompt_tokens") == [8] * 4, "what was meant"
    (tenant,) = summary_of(tmp_path / "r")["tenants"]
    assert (tenant["prompt_tokens"], tenant["output_tokens"], tenant["prefix_cache"]) == (32, 0, None)


def test_a_server_that_dies_in_a_run_is_106_and_the_moment_is_named(tmp_path):
    """Killed after the first rows reached the disk: the run is no verdict, the message says when the server stopped
    answering and how many requests were lost after it, and the summary keeps both."""
    model = tmp_path / "server-model.json"
    model.write_text(FAST_MODEL)
    server = start("emulate", "--server-model", model, cwd=tmp_path)
    try:
        url = server.stdout.readline().split()[-1]
        (tmp_path / "s.yaml").write_text(two_tenants(url, duration_s=4))
        run = start("run", "s.yaml", "--output-dir", "r", "--quiet", cwd=tmp_path)
        until(lambda: any(path.stat().st_size for path in (tmp_path / "r").glob("rows/*.arrow")), run)
    finally:
        server.kill()
        server.communicate()
    out, err = run.communicate(timeout=60)
    assert run.returncode == 106, (out, err)
    found = summary_of(tmp_path / "r")
    assert 1 < found["server"]["stopped_answering_s"] < 4
    assert f"stopped answering {found['server']['stopped_answering_s']:.1f} s into the run" in err
    lost = found["server"]["requests_after_it_stopped"]
    assert f"all of the {lost} requests that came to it later were lost" in err
    assert 3 <= lost <= found["total"]["statuses"]["failed"]


def test_the_embedded_server_needs_no_url(tmp_path):
    """A scenario that names no backend starts the embedded server, with the server model it names."""
    (tmp_path / "model.json").write_text(FAST_MODEL)
    text = two_tenants("", duration_s=0.2).replace(
        'backend: {kind: openai, url: ""}', "backend: {server_model: model.json, time_scale: 2}"
    )
    done = run_scenario(text, tmp_path)
    summary = summary_of(tmp_path / "r")
    assert done.returncode == (0 if summary["validity"]["valid"] else 107), done
    assert summary["plan"]["backend"]["kind"] == "emulated"
    assert summary["total"]["statuses"]["ok"] == summary["total"]["requests"] > 0
    assert summary["server"]["steps"] > 0


@pytest.mark.parametrize("breaks", ["decide", "observe_pace"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_controller_of_slots_that_breaks_ends_the_run(url, tmp_path, monkeypatch, workers, breaks):
    """With its own error, in the first of an hour of periods: what would follow is another run than was asked for."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("the rule divides by nothing")

    monkeypatch.setattr(AutoSlots, breaks, broken)
    text = two_tenants(url, duration_s=3600, rate=10).replace("attainment: 0.9}", "attainment: 0.9, tpot_ms: 1000}")
    text = text.replace("slots: {sequences: 4, prefill_tokens: 2048}", "slots: auto")
    with pytest.raises(ZeroDivisionError, match="divides by nothing"):
        run_scenario(text, tmp_path, "--workers", workers)
    assert {path.name for path in (tmp_path / "r").iterdir()} <= {"log.txt", "rows", "scenario.resolved.yaml"}
