"""What is answered: lengths obey the request, text is repeatable, stop strings end it."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from backends.emulator.answers import AnswerRules, OutputLengths, Words, prepare_answer
from backends.emulator.tokenizer import Tokenizer, count_tokens

WORDS = Words(seed=7)
prompts = st.binary(max_size=64)


def answer(prompt=b"p", lengths=None, **rules):
    return prepare_answer(WORDS, lengths or OutputLengths(mean=20, cv=0.8), prompt, AnswerRules(**rules))


@given(prompts, st.integers(1, 300), st.data())
def test_an_answer_that_may_not_end_early_has_max_tokens(prompt, limit, data):
    """ignore_eos, or min_tokens = max_tokens, fixes the length, and the finish reason is length."""
    rules = data.draw(st.sampled_from([{"ignore_eos": True}, {"min_tokens": limit}]))
    made = answer(prompt, max_tokens=limit, **rules)
    assert (made.tokens, made.finish_reason) == (limit, "length")


@given(prompts, st.integers(1, 300), st.data())
def test_a_drawn_length_lies_between_min_and_max_tokens(prompt, limit, data):
    """And says stop exactly when it ended before the limit."""
    least = data.draw(st.integers(0, limit))
    made = answer(prompt, max_tokens=limit, min_tokens=least)
    assert max(1, least) <= made.tokens <= limit
    assert made.finish_reason == ("stop" if made.tokens < limit else "length")


@pytest.mark.parametrize(("mean", "cv"), [(200.0, 0.8), (50.0, 0.3)])
def test_drawn_lengths_follow_the_lognormal_law(mean, cv):
    """Over many prompts the lengths are a sample of the lognormal of that mean and cv (KS, scipy's as the oracle)."""
    drawn = [
        answer(f"prompt {n}".encode(), OutputLengths(mean=mean, cv=cv), max_tokens=10**6).tokens for n in range(3000)
    ]
    sigma = np.sqrt(np.log1p(cv**2))
    expected = stats.lognorm(s=sigma, scale=mean / np.sqrt(1 + cv**2))
    # Whole tokens: spread each over its unit interval, else ties alone fail the test.
    jittered = np.array(drawn) + np.random.default_rng(1).uniform(-0.5, 0.5, len(drawn))
    assert stats.kstest(jittered, expected.cdf).pvalue > 0.01
    assert np.mean(drawn) == pytest.approx(mean, rel=0.05)


@given(prompts, st.integers(1, 50))
def test_the_same_request_gets_the_same_answer_and_its_text_is_its_tokens(prompt, limit):
    """Text, ids and count agree, on every server of that seed."""
    one = answer(prompt, max_tokens=limit, ignore_eos=True)
    two = prepare_answer(Words(seed=7), OutputLengths(), prompt, AnswerRules(max_tokens=limit, ignore_eos=True))
    assert one.text() == two.text()
    assert count_tokens(one.text()) == limit
    assert [one.token_id(i) for i in range(limit)] == Tokenizer().encode(one.text())


def test_another_seed_gives_another_answer():
    """The server's seed and the request's both matter."""
    texts = {
        prepare_answer(Words(server), OutputLengths(), b"p", AnswerRules(max_tokens=20, seed=own)).text()
        for server in (1, 2)
        for own in (None, 1, 2)
    }
    assert len(texts) == 6


@given(prompts, st.integers(2, 60), st.data())
def test_a_stop_string_ends_the_answer_at_its_first_occurrence(prompt, limit, data):
    """The visible text is what precedes the earliest completed stop string; the token that completes it is the last."""
    full = answer(prompt, max_tokens=limit, ignore_eos=True).text()
    start = data.draw(st.integers(0, len(full) - 1))
    stop = full[start : start + data.draw(st.integers(1, 7))]
    cut = full.find(stop)
    made = answer(prompt, max_tokens=limit, ignore_eos=True, stop=(stop,))
    assert made.text() == full[:cut]
    assert (made.finish_reason, made.stop_reason) == ("stop", stop)
    words_until_completed = full[: cut + len(stop)].rstrip(" ")
    assume(words_until_completed)
    assert made.tokens in (count_tokens(words_until_completed), count_tokens(words_until_completed) + 1)


def test_a_stop_string_before_min_tokens_does_not_end_the_answer():
    """min_tokens wins."""
    full = answer(max_tokens=10, ignore_eos=True).text().split()
    made = answer(max_tokens=10, min_tokens=5, ignore_eos=True, stop=(full[1], full[7]))
    assert made.tokens == 8
    assert made.text() == " ".join(full[:7]) + " "


@pytest.mark.parametrize("wrong", [{"mean": 0.5}, {"mean": float("nan")}, {"cv": -1.0}])
def test_lengths_that_make_no_sense_are_refused(wrong):
    """With the values in the message."""
    with pytest.raises(ValueError, match="mean must be >= 1 and cv >= 0"):
        OutputLengths(**wrong)
