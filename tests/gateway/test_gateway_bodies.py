"""What goes upstream in place of a client's body, and how chunks become one answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.gateway.ask import Mode, read_ask
from backends.gateway.dialects import messages
from backends.gateway.dialects.openai import CHAT, COMPLETIONS
from backends.gateway.dialects.other import OTHER
from backends.gateway.dialects.responses import RESPONSES
from backends.gateway.estimate import PromptEstimate
from backends.gateway.fold import FoldError, fold
from backends.gateway.refusal import Refusal


def ask(body: object, *, chat: bool = True, **more: object):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_ask(
        data, dialect=CHAT if chat else COMPLETIONS, **{"fold": True, "count_tokens": True, "priority": None, **more}
    )


MESSAGES = [{"role": "user", "content": "hi"}]


def test_a_stream_whose_client_asks_for_usage_goes_on_untouched():
    """Nothing to change: the very bytes that came."""
    data = b'{ "messages":[], "stream" : true,"stream_options":{"include_usage":true} , "x":1.0e3}'
    made = ask(data)
    assert (made.mode, made.body, made.strip_usage) == (Mode.PASS, data, False)


@given(
    st.dictionaries(
        st.text(max_size=8).filter(lambda k: k not in {"stream", "stream_options", "messages", "max_tokens"}),
        st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)),
        max_size=5,
    )
)
def test_usage_is_asked_for_beside_everything_the_client_said(fields):
    """Upstream sees each of the client's fields with its value, and include_usage beside the client's own options."""
    made = ask({**fields, "messages": MESSAGES, "stream": True, "stream_options": {"continuous_usage_stats": True}})
    sent = json.loads(made.body)
    assert sent.pop("stream_options") == {"continuous_usage_stats": True, "include_usage": True}
    assert sent == {**fields, "messages": MESSAGES, "stream": True}
    assert made.strip_usage


def test_numbers_and_escapes_of_the_client_survive_as_written():
    """Fields are kept as bytes: a float is not rounded, an escape not rewritten."""
    made = ask(b'{"messages":[{"content":"\\u00e9"}],"temperature":0.10000000000000000001,"stream":true}')
    assert b'"temperature":0.10000000000000000001' in made.body
    assert b'"\\u00e9"' in made.body


@pytest.mark.parametrize(
    ("more", "mode"),
    [
        ({}, Mode.FOLD),
        ({"stream": False, "n": 1, "temperature": 0.5, "logprobs": False, "tools": []}, Mode.FOLD),
        ({"stream": None, "tools": None}, Mode.FOLD),
        ({"n": 2}, Mode.WHOLE),
        ({"best_of": 3}, Mode.WHOLE),
        ({"logprobs": True}, Mode.WHOLE),
        ({"tools": [{"type": "function"}]}, Mode.WHOLE),
        ({"tool_choice": "auto"}, Mode.WHOLE),
        ({"a_field_of_next_year": 1}, Mode.WHOLE),
        ({"stream": True, "tools": [{"type": "function"}]}, Mode.PASS),
    ],
)
def test_only_what_is_known_to_fold_is_folded(more, mode):
    """Tools, log probabilities, several choices and unknown fields pass through unfolded."""
    made = ask({"messages": MESSAGES, **more})
    assert made.mode is mode
    assert bool(json.loads(made.body).get("stream")) is (mode is not Mode.WHOLE)


@pytest.mark.parametrize(
    ("prompt", "mode", "tokens"),
    [
        ("text", Mode.FOLD, None),
        (["one text"], Mode.WHOLE, None),
        (["two", "texts"], Mode.WHOLE, None),
        ([5, 6, 7], Mode.FOLD, 3),
        ([[5, 6], [7]], Mode.WHOLE, None),
    ],
)
def test_a_prompt_of_token_ids_is_counted_and_several_prompts_are_not_folded(prompt, mode, tokens):
    made = ask({"prompt": prompt}, chat=False)
    assert (made.mode, made.prompt_tokens) == (mode, tokens)


def test_without_usage_from_upstreams_nothing_is_asked_for_or_folded():
    """An upstream that refuses stream_options never sees them."""
    assert ask({"messages": MESSAGES}, count_tokens=False).mode is Mode.WHOLE
    made = ask({"messages": MESSAGES, "stream": True}, count_tokens=False)
    assert "stream_options" not in json.loads(made.body)


@pytest.mark.parametrize(
    "body", [b"", b"nonsense", b"[1]", b'{"stream": "yes"}', b'{"stream":true,"stream_options":3}', b"\xff"]
)
def test_a_body_that_is_no_request_is_a_400_that_says_so(body):
    with pytest.raises(Refusal) as refused:
        ask(body)
    assert (refused.value.status, refused.value.reason) == (400, "bad_body")


def test_a_tenant_s_class_goes_into_the_body_where_servers_read_it():
    assert json.loads(ask({"messages": MESSAGES, "stream": True}, priority=3).body)["priority"] == 3


def chunk(delta: dict[str, object], finish: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return json.dumps({"id": "i", "object": "chat.completion.chunk", "choices": [choice], **more}).encode()


@pytest.mark.parametrize(("dialect", "reads_it"), [(RESPONSES, True), (messages.MESSAGES, False), (OTHER, False)])
def test_a_class_goes_only_into_bodies_of_apis_that_know_the_field(dialect, reads_it):
    data = b'{"input": "x", "priority": 9}'
    made = read_ask(data, dialect=dialect, fold=True, count_tokens=True, priority=3)
    assert json.loads(made.body)["priority"] == (3 if reads_it else 9)


@given(st.lists(st.text(), min_size=1))
def test_folded_text_is_the_joined_text_of_the_chunks(parts):
    """Whatever the split; the last usage and the finish reason stand."""
    events = [
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"content": part}) for part in parts),
        chunk({}, "stop"),
    ]
    counts = {"prompt_tokens": 1, "completion_tokens": len(parts)}
    events += [json.dumps({"id": "i", "choices": [], "usage": counts}).encode(), b"[DONE]"]
    made = json.loads(fold(events, chat=True))
    assert made["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "".join(parts)},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert (made["object"], made["usage"], made["id"]) == ("chat.completion", counts, "i")


def test_reasoning_and_tool_calls_fold_by_their_own_rules():
    """Reasoning text joins beside the content; the parts of a tool call join by index."""
    events = [
        chunk({"reasoning_content": "be"}),
        chunk({"reasoning_content": "cause"}),
        chunk(
            {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}]}
        ),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}),
        chunk({"tool_calls": [{"index": 1, "id": "d", "function": {"name": "g", "arguments": "{}"}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}, "tool_calls"),
    ]
    message = json.loads(fold(events, chat=True))["choices"][0]["message"]
    assert message["content"] is None
    assert message["reasoning_content"] == "because"
    assert message["tool_calls"] == [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
        {"id": "d", "function": {"name": "g", "arguments": "{}"}},
    ]


@pytest.mark.parametrize("events", [[], [b"[DONE]"], [b"{"], [b"3"]])
def test_chunks_that_make_no_answer_are_an_error(events):
    with pytest.raises(FoldError):
        fold(events, chat=True)


def test_the_prompt_estimate_converges_to_the_tenant_s_own_ratio():
    """From a quarter token a byte to what usage tells; a forgotten past weighs (1 - 0.05)^n."""
    estimate = PromptEstimate()
    assert estimate.tokens(4_000) == 1_000
    for _ in range(200):
        estimate.learn(2_000, 1_000)
    assert abs(estimate.tokens_per_byte - 0.5) < 0.001
    assert estimate.tokens(0) == 1
