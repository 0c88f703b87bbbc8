"""The embedded server with a prefix cache and with drafts, seen on the wire and in its truth file."""

import json
from dataclasses import replace

import msgspec
import pytest
from aiohttp import ClientSession

from backends.emulator.blocks import block_names
from backends.emulator.config import EmulatorConfig
from backends.emulator.server import EmulatorServer
from backends.emulator.truth import read_truth
from scheduler.server_model.spec import ServerLimits, ServerModelSpec, StepLaw

MODEL = "fast-model"
WORDS = [f"w{n}" for n in range(200)]
SERVER = ServerModelSpec(
    name=MODEL,
    law=StepLaw(a_us=1000.0, b_us=1.0),
    limits=ServerLimits(max_num_seqs=8, max_num_batched_tokens=256, kv_tokens=4096, prefix_cache=True),
)
DRAFTS = msgspec.structs.replace(
    SERVER,
    limits=msgspec.structs.replace(SERVER.limits, prefix_cache=False, speculative_tokens=3, speculative_acceptance=0.8),
)


@pytest.fixture(params=["prefix"])
def config(request, tmp_path):
    spec = SERVER if request.param == "prefix" else DRAFTS
    return EmulatorConfig(server_model=spec, truth_path=tmp_path / "truth.jsonl")


async def ask(http, path="/v1/completions", **body):
    async with http.post(path, json={"model": MODEL, "max_tokens": 3, "ignore_eos": True, **body}) as response:
        assert response.status == 200
        return json.loads(await response.read())


async def stream(http, path="/v1/completions", **body):
    async with http.post(path, json={"model": MODEL, "stream": True, "ignore_eos": True, **body}) as response:
        text = (await response.read()).decode()
    events = [line[6:] for line in text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


async def test_usage_says_how_much_of_a_prompt_was_found(http):
    """100 words are 6 full blocks of 16: the second time 96 tokens, a prompt that differs in word 40 finds 32."""
    prompt = " ".join(WORDS[:100])
    other = " ".join([*WORDS[:40], "else", *WORDS[41:100]])
    usages = [(await ask(http, prompt=text))["usage"] for text in (prompt, prompt, other)]
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [0, 96, 32]
    assert all(usage["prompt_tokens"] == 100 for usage in usages)


async def test_text_ids_and_streams_find_the_same_blocks(http):
    """A prompt as text, as its token ids, streamed or not, is one prompt; 16 tokens: at least one is always prefilled."""
    prompt = " ".join(WORDS[:64])
    async with http.post("/tokenize", json={"prompt": prompt}) as response:
        ids = json.loads(await response.read())["tokens"]
    first = await ask(http, prompt=prompt)
    second = await ask(http, prompt=ids)
    chunks = await stream(http, prompt=prompt, max_tokens=3, stream_options={"include_usage": True})
    found = [body["usage"]["prompt_tokens_details"]["cached_tokens"] for body in (first, second, chunks[-1])]
    assert found == [0, 48, 48]


async def test_a_conversation_finds_its_earlier_turns(http):
    """The chat template's markers are part of the blocks: a second turn repeats the first one's tokens."""
    path, first = "/v1/chat/completions", {"role": "user", "content": " ".join(WORDS[:50])}
    await ask(http, path, messages=[first])
    more = [first, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "and then"}]
    usage = (await ask(http, path, messages=more))["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 48


def test_a_blocks_name_depends_on_all_before_it():
    """Full blocks only; equal names up to the first difference and none after it."""
    ids = list(range(70))
    names = block_names(ids)
    assert len(names) == 4
    changed = block_names([*ids[:20], 999, *ids[21:]])
    assert [a == b for a, b in zip(names, changed, strict=True)] == [True, False, False, False]
    assert len(set(names) | set(changed)) == 7


@pytest.mark.parametrize("config", ["drafts"], indirect=True)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_chunk_holds_what_a_step_gave(http, config, path):
    """Several tokens a chunk: text, token ids and usage agree chunk by chunk; the first chunk has one; the counts add up."""
    body = {"prompt": "a b"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a b"}]}
    asked = {**body, "max_tokens": 60, "return_token_ids": True}
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await stream(http, path, **asked, stream_options=options)
    tokens = [chunk for chunk in chunks if chunk["choices"] and chunk["choices"][0].get("token_ids")]
    sizes = [len(chunk["choices"][0]["token_ids"]) for chunk in tokens]
    assert sum(sizes) == 60
    assert sizes[0] == 1
    assert max(sizes) > 1
    assert set(sizes) <= {1, 2, 3, 4}
    so_far = 0
    for chunk, size in zip(tokens, sizes, strict=True):
        so_far += size
        choice = chunk["choices"][0]
        text = choice["text"] if "text" in choice else choice["delta"]["content"]
        assert len(text.split()) == size
        assert chunk["usage"]["completion_tokens"] == so_far
    assert [chunk["choices"][0]["finish_reason"] for chunk in tokens] == [None] * (len(tokens) - 1) + ["length"]
    assert "prompt_tokens_details" not in chunks[-1]["usage"], "without a prefix cache nothing is known of it"
    plain = await stream(http, path, **{**body, "max_tokens": 60})
    whole = await ask(http, path, **{**body, "max_tokens": 60})
    spoken = [chunk["choices"][0] for chunk in plain]
    text = "".join(c["text"] if "text" in c else c["delta"]["content"] for c in spoken)
    said = whole["choices"][0]
    assert text == (said["text"] if "text" in said else said["message"]["content"])


@pytest.mark.parametrize("config", ["drafts"], indirect=True)
async def test_the_truth_file_has_an_instant_for_every_token(http, config):
    """Tokens of one step share their instant, planned and real."""
    await ask(http, prompt="a b", max_tokens=40)
    (record,) = read_truth(config.truth_path)
    assert record.output_tokens == len(record.token_ns) == len(record.planned_ns) == 40
    assert len(set(record.planned_ns)) == len(set(record.token_ns)) < 40
    assert record.token_ns == sorted(record.token_ns)


async def test_a_server_without_the_cache_says_nothing_of_it(config):
    """``prompt_tokens_details`` appears only where there is something to tell."""
    limits = msgspec.structs.replace(SERVER.limits, prefix_cache=False)
    plain = replace(config, server_model=msgspec.structs.replace(SERVER, limits=limits), truth_path=None)
    async with EmulatorServer(plain) as server, ClientSession(server.url) as http:
        assert "prompt_tokens_details" not in (await ask(http, prompt="a b"))["usage"]


@pytest.mark.parametrize("config", ["drafts"], indirect=True)
async def test_the_longest_request_of_a_drafting_server_leaves_room_for_its_drafts(http):
    """A longer one is refused, like any that is too long for the context; the engine goes on."""
    async with http.get("/v1/models") as response:
        context = (await response.json())["data"][0]["max_model_len"]
    assert context == 4096 - 3
    body = {"model": MODEL, "max_tokens": 3, "ignore_eos": True}
    async with http.post("/v1/completions", json={**body, "prompt": [7] * (4096 - 3)}) as response:
        assert (response.status, "4093" in await response.text()) == (400, True)
    assert (await ask(http, prompt=[7] * (context - 3)))["usage"]["completion_tokens"] == 3
