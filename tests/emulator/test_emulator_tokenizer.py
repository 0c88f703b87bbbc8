"""The embedded server's tokenizer keeps the rules that clients build prompts by."""

from hypothesis import given
from hypothesis import strategies as st

from backends.emulator.tokenizer import VOCABULARY, Tokenizer, chat_added, chat_overhead, count_tokens
from backends.openai import OpenAIBackend
from backends.protocol import AddedTokens

short_word = st.text(st.characters(exclude_categories=("Z", "C")), min_size=1, max_size=16).filter(
    lambda word: len(word.split()) == 1 and word.split()[0] == word
)


@given(st.lists(st.one_of(st.sampled_from(VOCABULARY), short_word), min_size=1, max_size=40))
def test_a_prompt_of_n_short_words_has_n_tokens_whatever_the_words_are(words):
    """One token a whitespace-separated word of at most 16 characters."""
    text = " ".join(words)
    assert count_tokens(text) == len(words)
    assert len(Tokenizer().encode(text)) == len(words)


@given(st.text(max_size=300))
def test_the_count_is_the_length_of_the_encoding(text):
    """What is counted without encoding is what encoding gives."""
    assert count_tokens(text) == len(Tokenizer().encode(text))


@given(st.text(max_size=300))
def test_decoding_gives_the_text_back_with_its_whitespace_as_single_spaces(text):
    """encode and decode are inverse up to whitespace, words outside the vocabulary and long ones included."""
    tokenizer = Tokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == " ".join(text.split())


@given(st.lists(st.sampled_from(VOCABULARY), max_size=50))
def test_vocabulary_ids_mean_the_same_to_every_server(words):
    """Ids of vocabulary words decode in a server that never saw them."""
    assert Tokenizer().decode(Tokenizer().encode(" ".join(words))) == " ".join(words)


def test_a_long_word_costs_one_token_for_each_16_characters():
    """Text without spaces is not one token."""
    assert [count_tokens("x" * n) for n in (1, 16, 17, 32, 33, 160)] == [1, 1, 2, 2, 3, 10]


def test_the_vocabulary_has_4096_different_words_of_one_length():
    """Chunk sizes rely on it."""
    assert len(set(VOCABULARY)) == 4096
    assert {len(word.encode()) for word in VOCABULARY} == {4}


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text(max_size=60)), max_size=6))
def test_the_chat_template_adds_two_tokens_a_message_and_one_at_the_end(messages):
    """The overhead does not depend on the contents."""
    contents = sum(count_tokens(text) for _, text in messages)
    assert len(Tokenizer().encode_chat(messages)) == contents + 2 * len(messages) + 1
    assert chat_overhead(len(messages)) == 2 * len(messages) + 1
    assert len(Tokenizer().encode_chat(messages, add_generation_prompt=False)) == contents + 2 * len(messages)


def test_memory_for_unknown_words_is_bounded_and_a_forgotten_word_decodes_to_its_id():
    """A server that runs for days does not grow with the words it has seen."""
    tokenizer = Tokenizer()
    (first,) = tokenizer.encode("unheard-of")
    tokenizer.encode(" ".join(f"word{n}" for n in range(70_000)))
    assert tokenizer.decode([first]) == f"<{first}>"


async def test_a_client_learns_what_the_template_adds_on_which_side(server):
    """By ``/tokenize``: one marker in front of a message, two behind it, none around a text."""
    backend = OpenAIBackend(server.url)
    assert await backend.added_tokens("fast-model", "chat") == chat_added() == AddedTokens(front=1, behind=2)
    assert await backend.added_tokens("fast-model", "completions") == AddedTokens(0, 0)
    await backend.close()
