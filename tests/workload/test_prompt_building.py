"""Rules of prompts: exact length by the server's own count, unique content, shared text only where blocks say so."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.workload.blocks import block_names, mix
from loadgen.workload.fitted_prompts import RatioPrompts, TokenizerPrompts
from loadgen.workload.prompts import WordPool, WordPrompts
from loadgen.workload.source import Workload
from loadgen.workload.vocabulary import COMMON_WORDS
from scheduler.request import Outcome, Request, Status
from tenants.tenant import Tenant
from tenants.traffic import Arrivals, Lengths, Sessions, Traffic

BOS = 1


def request(request_id=0, tokens=1000, **rest):
    return Request(id=request_id, tenant="a", arrival_ns=0, prompt_tokens=tokens, **rest)


def words_of(prompt):
    return prompt.content.split()


def word_tokens(text):
    """A tokenizer in which every word is one token, after a BOS."""
    return [BOS, *(hash(word) for word in text.split())]


def byte_tokens(text):
    """A tokenizer in which no word is one token."""
    return list(text.encode())


def pair_tokens(text):
    """Two characters a token, whatever they are: words are split unevenly and depend on what stands before them."""
    return [text[i : i + 2] for i in range(0, len(text), 2)]


def long_word_tokens(text):
    """Words of up to four letters are one token, longer ones two, and a BOS."""
    return [BOS] + [piece for word in text.split() for piece in ([word] if len(word) <= 4 else [word[:4], word[4:]])]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**50), st.integers(1, 3000), st.integers(0, 30), st.integers(0, 40))
def test_a_word_prompt_has_the_exact_number_of_words(request_id, tokens, overhead, blocks):
    """Words + template = prompt_tokens, with and without prefix blocks; at least one word is sent."""
    builder = WORDS.setdefault(overhead, WordPrompts(overhead_tokens=overhead))
    prompt = builder.build(request(request_id, tokens, prefix_blocks=tuple(range(blocks))))
    assert len(words_of(prompt)) == max(1, tokens - overhead)
    assert prompt.tokens == len(words_of(prompt)) + overhead


WORDS: dict[int, WordPrompts] = {}


def test_a_prompt_longer_than_the_pool_has_its_length_too():
    """Half a million tokens: the pool is gone round several times."""
    assert len(words_of(WordPrompts().build(request(1, 500_001)))) == 500_001


@pytest.mark.parametrize("builder", [WordPrompts(seed=4), RatioPrompts(seed=4)])
def test_no_two_prompts_share_their_first_block(builder):
    """A prefix cache finds nothing by accident: the first 16 tokens differ between any two of 20,000 requests."""
    starts = set()
    for i in range(20_000):
        starts.add(tuple(words_of(builder.build(request(i, 64)))[:16]))
    assert len(starts) == 20_000


def test_the_same_request_gives_the_same_prompt_and_another_seed_another():
    """Deterministic by seed and id."""
    for make in (WordPrompts, RatioPrompts):
        assert make(seed=1).build(request(5)) == make(seed=1).build(request(5))
        assert make(seed=1).build(request(5)) != make(seed=2).build(request(5))


def shared_tokens(first, second):
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return sum(1 for _ in same)


@pytest.mark.parametrize("overhead", [0, 7, 20])
def test_equal_blocks_are_equal_text_and_the_rest_is_not(overhead):
    """Two requests with n equal leading blocks share n x block tokens, template included, and no block more."""
    builder = WordPrompts(block_tokens=16, overhead_tokens=overhead)
    first = words_of(builder.build(request(1, 200, prefix_blocks=(11, 12, 13))))
    second = words_of(builder.build(request(2, 150, prefix_blocks=(11, 12, 99))))
    assert 32 <= shared_tokens(first, second) + overhead < 48


@pytest.mark.parametrize(("front", "behind"), [(0, 0), (1, 2), (7, 13), (20, 1)])
def test_what_a_template_puts_behind_takes_nothing_of_the_blocks(front, behind):
    """Blocks begin where the template begins: n equal leading blocks are n x block tokens of equal text, those in front
    included, and the next word differs."""
    builder = WordPrompts(block_tokens=16, overhead_tokens=front + behind, behind_tokens=behind)
    first, second = (words_of(builder.build(request(i, 200, prefix_blocks=(11, 12, i)))) for i in (1, 2))
    assert shared_tokens(first, second) + front == 32


@pytest.mark.parametrize("overhead", [0, 7])
def test_after_a_block_that_differs_nothing_is_shared(overhead):
    """Equal blocks behind a first one that differs are no shared prefix."""
    builder = WordPrompts(block_tokens=16, overhead_tokens=overhead)
    first = words_of(builder.build(request(1, 200, prefix_blocks=(11, 12, 13))))
    second = words_of(builder.build(request(3, 150, prefix_blocks=(98, 12, 13))))
    assert shared_tokens(first, second) + overhead < 16


def test_a_last_block_cut_by_the_prompt_is_a_prefix_of_the_whole_block():
    """Mooncake's hash_ids cover the whole prompt; the last block of 512 may be short."""
    builder = WordPrompts(block_tokens=512)
    short = words_of(builder.build(request(1, 700, prefix_blocks=(5, 6))))
    long = words_of(builder.build(request(2, 1024, prefix_blocks=(5, 6))))
    assert long[:700] == short


def test_a_kept_prefix_is_the_prefix_that_would_be_built():
    """Keeping shared prefixes changes no prompt, whichever request came first."""
    blocks = tuple(range(20))
    one, other = WordPrompts(), WordPrompts()
    requests = [request(i, tokens, prefix_blocks=blocks) for i, tokens in enumerate((400, 90, 320, 321))]
    forward = {r.id: one.build(r) for r in requests}
    backward = {r.id: other.build(r) for r in reversed(requests)}
    assert forward == backward


def test_a_conversation_grows_word_by_word():
    """Every turn's prompt begins with the whole prompt of the turn before, letter by letter."""
    spec = Traffic(
        arrivals=Arrivals(rate=1),
        prompt=Lengths(mean=37),
        output=Lengths(mean=23),
        sessions=Sessions(turns=Lengths(mean=5), shared_prefix_tokens=50),
    )
    workload = Workload([(Tenant(name="a"), spec)], duration_s=60, seed=9)
    builder = WordPrompts(seed=9)
    turn = next(workload.absolute())
    text = ""
    for _ in range(5):
        content = builder.build(turn).content
        assert content.startswith(text)
        assert len(content.split()) == turn.prompt_tokens
        text = content
        turn = workload.after(Outcome(request=turn, status=Status.OK, ended_ns=turn.arrival_ns + 1))
    assert turn is None


@pytest.mark.parametrize("encode", [word_tokens, byte_tokens, pair_tokens, long_word_tokens])
@pytest.mark.parametrize("tokens", [1, 2, 17, 333, 1500])
def test_a_tokenizer_prompt_encodes_to_exactly_n_tokens(encode, tokens):
    """Whatever the tokenizer does to words, its own count of the text is the wanted one."""
    builder = TokenizerPrompts(encode, overhead_tokens=0)
    own = len(encode(""))
    for i in range(20):
        prompt = builder.build(request(i, tokens, prefix_blocks=tuple(range(i))))
        assert len(encode(prompt.content)) - own == tokens == prompt.tokens


def test_single_token_words_are_found_among_others():
    """Only words of one token are used, so that texts need no encoding: here those of up to four letters."""
    builder = TokenizerPrompts(long_word_tokens)
    assert builder.exact_words
    assert max(len(word) for word in words_of(builder.build(request(3, 2000)))) <= 4
    assert not TokenizerPrompts(byte_tokens).exact_words


def test_encoding_is_asked_for_the_first_prompts_only():
    """A verified vocabulary is trusted: the tokenizer is not in the way of a thousand prompts."""
    calls = 0

    def encode(text):
        nonlocal calls
        calls += 1
        return word_tokens(text)

    builder = TokenizerPrompts(encode)
    made = calls
    for i in range(1000):
        builder.build(request(i, 100))
    assert calls - made <= 20


def test_a_tokenizer_that_breaks_its_promise_is_not_trusted_again():
    """Words that are single alone and merge in company are seen on the first prompt; the counts stay exact."""

    def merging(text):
        # Words repeated are single; any two different neighbours of which the second starts with a vowel merge.
        words, tokens = text.split(), []
        for i, word in enumerate(words):
            if not (i and words[i - 1] != word and word[0] in "aeiou" and len(words) < 200):
                tokens.append(word)
        return tokens

    builder = TokenizerPrompts(merging)
    for i in range(5):
        prompt = builder.build(request(i, 60))
        assert prompt.tokens == len(merging(prompt.content)) == 60
    assert not builder.exact_words


def test_when_no_text_has_the_exact_count_the_true_one_is_told():
    """A tokenizer that only counts in threes: the nearest, with the count that the server will see."""

    def threes(text):
        return [0] * (3 * -(-len(text) // 3))

    prompt = TokenizerPrompts(threes).build(request(1, 100))
    assert prompt.tokens == len(threes(prompt.content))
    assert abs(prompt.tokens - 100) <= 3


def test_the_ratio_converges_to_the_servers_count():
    """Observed usage corrects the length: after 50 prompts the count is within 2% of the wanted one."""
    builder = RatioPrompts(characters_per_token=9.0, overhead_tokens=12)

    def served(text):
        return 12 + len(text) / 3.7

    for i in range(50):
        prompt = builder.build(request(i, 500))
        builder.observe(len(prompt.content), round(served(prompt.content)))
    assert served(builder.build(request(99, 500)).content) == pytest.approx(500, rel=0.02)
    assert builder.characters_per_token == pytest.approx(3.7, rel=0.02)


def test_what_the_ratio_learns_leaves_shared_blocks_as_they_were():
    """Equal blocks stay equal text while the ratio moves."""
    builder = RatioPrompts(block_tokens=64)
    before = builder.build(request(1, 400, prefix_blocks=(3, 4))).content
    for _ in range(20):
        builder.observe(1000, 300)
    after = builder.build(request(2, 400, prefix_blocks=(3, 4))).content
    first = len(RatioPrompts(block_tokens=64).build(request(9, 128, prefix_blocks=(3, 4))).content)
    assert before[: first - 1] == after[: first - 1]
    assert before[: first + 100] != after[: first + 100]


def test_the_vocabulary_is_of_distinct_words_and_big_enough_to_spell_names():
    """256 words spell a 64-bit name in 8: half a cache block."""
    assert len(set(COMMON_WORDS)) == len(COMMON_WORDS) >= 256
    with pytest.raises(ValueError, match="two or more"):
        WordPool(["only"], seed=0)
    with pytest.raises(ValueError, match="characters_per_token is 0"):
        RatioPrompts(characters_per_token=0)


def test_block_names_do_not_collide_and_do_not_depend_on_how_they_are_asked_for():
    """One name a (key, place); any range of places gives the same names."""
    names = [name for key in range(50) for name in block_names(mix(key), 0, 200)]
    assert len(set(names)) == 50 * 200
    assert min(names) >= 0
    assert max(names) < 2**63
    assert block_names(7, 3, 9) == block_names(7, 0, 20)[3:9]
    assert block_names(7, 5, 5) == []
