"""Rules of the length distributions; moments are judged by scipy and by sums over the support, never by the sampler."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from loadgen.workload.lengths import LengthSampler, faults_of, mean_of, moments_of, sample
from tenants.traffic import Distribution, Lengths

D = Distribution
N = 200_000


def rng(seed=1):
    return np.random.default_rng(seed)


def lognormal(mean, cv, **bounds):
    return Lengths(distribution=D.LOGNORMAL, mean=mean, cv=cv, **bounds)


def scipy_lognormal(mean, cv):
    variance = np.log1p(cv**2)
    return stats.lognorm(s=np.sqrt(variance), scale=mean * np.exp(-variance / 2))


def test_fixed_is_its_mean_always():
    """A fixed length is one number."""
    assert set(sample(Lengths(mean=128), 1000, rng()).tolist()) == {128}


@pytest.mark.parametrize(("mean", "cv"), [(300, 0.8), (2000, 0.5), (100, 3.0)])
def test_lognormal_has_the_mean_and_cv_that_were_asked_for(mean, cv):
    """mean and cv are those of the distribution itself, not of its logarithm (KS against scipy's)."""
    oracle = scipy_lognormal(mean, cv)
    assert oracle.mean() == pytest.approx(mean)
    assert oracle.std() / oracle.mean() == pytest.approx(cv)
    values = sample(lognormal(mean, cv, low=0), N, rng())
    # Rounding moves the distribution function by up to half a token.
    jittered = values + rng(2).uniform(-0.5, 0.5, N)
    assert stats.ks_1samp(jittered[:20_000], oracle.cdf).pvalue > 0.01


def test_normal_has_the_mean_and_cv_that_were_asked_for():
    """Far from its bounds a normal length keeps mean and cv."""
    values = sample(Lengths(distribution=D.NORMAL, mean=1000, cv=0.1), N, rng())
    assert values.mean() == pytest.approx(1000, rel=0.002)
    assert values.std() == pytest.approx(100, rel=0.01)


def test_uniform_reaches_both_ends_with_equal_chance():
    """UNIFORM: ints in [low, high], both included (chi square)."""
    values = sample(Lengths(distribution=D.UNIFORM, low=3, high=12), N, rng())
    assert stats.chisquare(np.bincount(values, minlength=13)[3:]).pvalue > 0.01
    assert values.min() == 3
    assert values.max() == 12


def test_zipf_falls_as_a_power_of_the_length():
    """ZIPF: P(k) is proportional to k^-alpha over [low, high] (chi square)."""
    values = sample(Lengths(distribution=D.ZIPF, low=2, high=30, alpha=1.3), N, rng())
    weights = np.arange(2, 31) ** -1.3
    expected = N * weights / weights.sum()
    assert stats.chisquare(np.bincount(values, minlength=31)[2:], expected).pvalue > 0.01


def test_a_mixture_draws_each_part_by_its_weight():
    """MIXTURE: weights need not sum to one."""
    spec = Lengths(distribution=D.MIXTURE, parts=((3.0, Lengths(mean=10)), (1.0, Lengths(mean=500))))
    values = sample(spec, N, rng())
    assert set(values.tolist()) == {10, 500}
    assert (values == 10).mean() == pytest.approx(0.75, abs=0.005)


def test_empirical_draws_its_values_and_no_others():
    """EMPIRICAL: uniform over the values, repeated ones the more often."""
    values = sample(Lengths(distribution=D.EMPIRICAL, values=(5, 5, 5, 70)), N, rng())
    assert set(values.tolist()) == {5, 70}
    assert (values == 5).mean() == pytest.approx(0.75, abs=0.005)


@pytest.mark.parametrize(
    "spec",
    [
        lognormal(50, 2, low=10, high=60),
        Lengths(distribution=D.NORMAL, mean=5, cv=3, low=2, high=8),
        Lengths(distribution=D.EMPIRICAL, values=(1, 100), low=10, high=20),
        Lengths(distribution=D.MIXTURE, parts=((1, Lengths(mean=1)), (1, Lengths(mean=99))), low=10, high=20),
        Lengths(mean=1, low=4),
    ],
)
def test_bounds_hold_for_every_distribution(spec):
    """Whatever is drawn is an int64 in [low, high]."""
    values = sample(spec, 10_000, rng())
    assert values.dtype == np.int64
    assert values.min() >= spec.low
    assert spec.high is None or values.max() <= spec.high


def test_a_length_beyond_the_ints_is_clipped_and_does_not_wrap():
    """A tail heavier than int64 holds gives large counts, never negative ones."""
    assert sample(lognormal(1e15, 1e4), 100_000, rng()).min() >= 1


def test_mean_counts_what_clipping_removes():
    """mean_of is the mean of the clipped, rounded draw: E[min(X, high)] by scipy's integral."""
    oracle = scipy_lognormal(300, 3.0)
    limited = oracle.expect(lambda x: np.minimum(x, 8000), limit=500)
    assert mean_of(lognormal(300, 3.0, high=8000)) == pytest.approx(limited, rel=1e-3)
    assert mean_of(lognormal(300, 3.0, high=8000)) < 295


@pytest.mark.parametrize("cv", [0.2, 0.8, 2.0])
def test_mean_and_square_match_an_explicit_sum_over_the_support(cv):
    """Moments = sum of k P(Y = k), with P from scipy's distribution function at the half-integers."""
    spec = lognormal(40, cv, low=5, high=200)
    k = np.arange(5, 201)
    upper = scipy_lognormal(40, cv).cdf(k + 0.5)
    upper[-1] = 1.0
    p = np.diff(np.concatenate([[0.0], upper]))
    assert moments_of(spec)[0] == pytest.approx((k * p).sum(), rel=1e-9)
    assert moments_of(spec)[1] == pytest.approx((k**2 * p).sum(), rel=1e-9)


def test_mean_of_a_long_tail_is_exact_beyond_the_term_by_term_part():
    """Unclipped, a lognormal of large mean keeps that mean, and its second moment is mean^2 (1 + cv^2)."""
    mean, square = moments_of(lognormal(200_000, 2.0))
    assert mean == pytest.approx(200_000, rel=1e-5)
    assert square == pytest.approx(200_000**2 * 5, rel=1e-4)


small = st.integers(0, 40)
specs = st.one_of(
    st.builds(lambda m: Lengths(mean=m), st.integers(1, 40)),
    st.builds(lambda a, b: Lengths(distribution=D.UNIFORM, low=min(a, b), high=max(a, b)), small, small),
    st.builds(lambda v: Lengths(distribution=D.EMPIRICAL, values=tuple(v), low=0), st.lists(small, min_size=1)),
    st.builds(lambda n, a: Lengths(distribution=D.ZIPF, low=1, high=n, alpha=a), st.integers(1, 40), st.floats(0, 3)),
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 5), specs), min_size=1, max_size=3),
    st.integers(0, 30),
    st.integers(0, 30),
    st.integers(0, 2**32),
)
def test_the_mean_of_a_clipped_mixture_is_the_mean_of_its_draws(parts, a, b, seed):
    """Clipping twice (a part, then the mixture) is counted in the moments (z test on 20,000 draws)."""
    spec = Lengths(distribution=D.MIXTURE, parts=tuple(parts), low=min(a, b), high=max(a, b))
    values = sample(spec, 20_000, rng(seed)).astype(float)
    mean, square = moments_of(spec)
    deviation = np.sqrt(max(square - mean**2, 0.0) / len(values))
    assert abs(values.mean() - mean) <= 5.5 * deviation + 1e-9


def test_a_sampler_and_the_function_draw_the_same():
    """LengthSampler only keeps the tables."""
    spec = Lengths(distribution=D.ZIPF, low=1, high=100)
    assert LengthSampler(spec).draw(100, rng()).tolist() == sample(spec, 100, rng()).tolist()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (Lengths(distribution=D.UNIFORM, low=5), "needs high"),
        (Lengths(distribution=D.UNIFORM, low=5, high=2), "below low"),
        (Lengths(distribution=D.ZIPF, low=1), "needs high"),
        (Lengths(distribution=D.ZIPF, low=0, high=5), "starts at 1"),
        (Lengths(distribution=D.ZIPF, low=1, high=5, alpha=-1), "alpha is -1"),
        (lognormal(0, 0.5), "needs a mean > 0"),
        (lognormal(10, -0.5), "cv is -0.5"),
        (lognormal(float("nan"), 0.5), "finite mean"),
        (Lengths(mean=-3), "mean is -3"),
        (Lengths(low=-1), "low is -1"),
        (Lengths(distribution=D.EMPIRICAL), "needs values"),
        (Lengths(distribution=D.EMPIRICAL, values=(3, -4)), "-4"),
        (Lengths(distribution=D.MIXTURE), "needs parts"),
        (Lengths(distribution=D.MIXTURE, parts=((0.0, Lengths()),)), "weights"),
        (Lengths(distribution=D.MIXTURE, parts=((1.0, Lengths(mean=-1)),)), "part 0: mean is -1"),
    ],
)
def test_a_fault_says_what_is_wrong(spec, words):
    """An unusable distribution is refused by sampler and mean alike, in words that name the field."""
    assert any(words in fault for fault in faults_of(spec))
    with pytest.raises(ValueError, match=str(spec.distribution)):
        sample(spec, 1, rng())
    with pytest.raises(ValueError, match=str(spec.distribution)):
        mean_of(spec)


def test_every_fault_is_listed_at_once():
    """A person fixes all faults in one go."""
    assert len(faults_of(lognormal(-1, -1, low=-1))) == 3
