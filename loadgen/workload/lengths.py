"""Token counts drawn from a :class:`tenants.traffic.Lengths`, and the moments of what is drawn.

A count is the drawn real number rounded to the nearest int and then clipped to [low, high]; ``mean`` and ``cv``
describe the number *before* that. A lognormal of mean m and coefficient of variation v has sigma^2 = ln(1 + v^2) and
mu = ln m - sigma^2 / 2 (Johnson, Kotz, Balakrishnan, Continuous Univariate Distributions, vol. 1, ch. 14).

The mean of what is really drawn turns a load (cost units/s) into a rate, so clipping must be in it. For an integer
Y >= low and its survival S(k) = P(Y > k):

    E[Y] = low + sum_{k >= low} S(k)            E[Y^2] = low^2 + sum_{k >= low} (2k + 1) S(k)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tenants.traffic import Distribution, Lengths

Int64s = NDArray[np.int64]
Floats = NDArray[np.float64]

_ZIPF_SUPPORT_MAX = 10_000_000
_EXACT_TERMS = 1 << 16
_TAIL_POINTS = 100_001
_TAIL_SIGMAS = 12.0
_NO_HIGH = 1 << 62  # exact as a float too, so that clipping a float to it still fits an int64


def faults_of(spec: Lengths) -> list[str]:
    """Everything that is wrong with ``spec``, each with what would be right; empty when it can be drawn from."""
    faults = []
    if spec.low < 0:
        faults.append(f"low is {spec.low}; a token count is >= 0")
    if spec.high is not None and spec.high < spec.low:
        faults.append(f"high ({spec.high}) is below low ({spec.low}); high >= low would be right")
    match spec.distribution:
        case Distribution.FIXED | Distribution.NORMAL | Distribution.LOGNORMAL:
            faults.extend(_mean_faults(spec))
        case Distribution.UNIFORM:
            if spec.high is None:
                faults.append("a uniform length needs high; give low and high")
        case Distribution.ZIPF:
            faults.extend(_zipf_faults(spec))
        case Distribution.MIXTURE:
            faults.extend(_mixture_faults(spec))
        case Distribution.EMPIRICAL:
            if not spec.values:
                faults.append("an empirical length needs values; give at least one token count")
            elif min(spec.values) < 0:
                faults.append(f"values holds {min(spec.values)}; a token count is >= 0")
    return faults


def _mean_faults(spec: Lengths) -> list[str]:
    faults = []
    if not (math.isfinite(spec.mean) and spec.mean >= 0):
        faults.append(f"mean is {spec.mean}; a {spec.distribution} length needs a finite mean >= 0")
    if spec.distribution is Distribution.FIXED:
        return faults
    if spec.mean == 0:
        faults.append(f"mean is 0; a {spec.distribution} length needs a mean > 0")
    if not (math.isfinite(spec.cv) and spec.cv >= 0):
        faults.append(f"cv is {spec.cv}; standard deviation / mean is a finite number >= 0")
    return faults


def _zipf_faults(spec: Lengths) -> list[str]:
    faults = []
    if not (math.isfinite(spec.alpha) and spec.alpha >= 0):
        faults.append(f"alpha is {spec.alpha}; a Zipf exponent is a finite number >= 0")
    if spec.low < 1:
        faults.append(f"low is {spec.low}; a Zipf length starts at 1 or above")
    if spec.high is None:
        faults.append("a Zipf length needs high; give low and high")
    elif spec.high - spec.low >= _ZIPF_SUPPORT_MAX:
        faults.append(f"high - low is {spec.high - spec.low}; below {_ZIPF_SUPPORT_MAX} would be right")
    return faults


def _mixture_faults(spec: Lengths) -> list[str]:
    faults = []
    if not spec.parts:
        faults.append("a mixture needs parts; give at least one (weight, lengths) pair")
    weights = [weight for weight, _ in spec.parts]
    if any(not (math.isfinite(w) and w >= 0) for w in weights) or (spec.parts and not sum(weights) > 0):
        faults.append(f"the weights of the parts are {weights}; finite numbers >= 0 with a sum > 0 would be right")
    for i, (_, part) in enumerate(spec.parts):
        faults.extend(f"part {i}: {fault}" for fault in faults_of(part))
    return faults


class LengthSampler:
    """Draws from one distribution; the tables it needs are made once. Raises ValueError that lists every fault."""

    def __init__(self, spec: Lengths) -> None:
        faults = faults_of(spec)
        if faults:
            raise ValueError(f"{spec.distribution} length: " + "; ".join(faults))
        self._low = spec.low
        self._high = _NO_HIGH if spec.high is None else spec.high
        self._draw = _drawer(spec)

    def draw(self, n: int, rng: np.random.Generator) -> Int64s:
        """``n`` token counts, shape (n,)."""
        values = self._draw(n, rng)
        if values.dtype != np.int64:
            values = np.rint(values)
        return np.clip(values, self._low, self._high).astype(np.int64, copy=False)


def sample(spec: Lengths, n: int, rng: np.random.Generator) -> Int64s:
    """``n`` token counts of ``spec``, shape (n,). Raises ValueError that lists every fault of ``spec``."""
    return LengthSampler(spec).draw(n, rng)


def _drawer(spec: Lengths) -> Callable[[int, np.random.Generator], NDArray[np.int64] | Floats]:
    match spec.distribution:
        case Distribution.UNIFORM:
            high = _NO_HIGH if spec.high is None else spec.high
            return lambda n, rng: rng.integers(spec.low, high, size=n, endpoint=True)
        case Distribution.NORMAL:
            return lambda n, rng: rng.normal(spec.mean, spec.cv * spec.mean, size=n)
        case Distribution.LOGNORMAL:
            mu, sigma = _lognormal_parameters(spec)
            return lambda n, rng: rng.lognormal(mu, sigma, size=n)
        case Distribution.ZIPF:
            support, probabilities = _zipf_table(spec)
            cdf = np.cumsum(probabilities)
            last = len(support) - 1
            return lambda n, rng: support[np.minimum(np.searchsorted(cdf, rng.random(n), side="right"), last)]
        case Distribution.MIXTURE:
            return _mixture_drawer(spec)
        case Distribution.EMPIRICAL:
            values = np.asarray(spec.values, dtype=np.int64)
            return lambda n, rng: values[rng.integers(0, len(values), size=n)]
        case Distribution.FIXED:
            return lambda n, _rng: np.full(n, spec.mean)


def _mixture_drawer(spec: Lengths) -> Callable[[int, np.random.Generator], Int64s]:
    weights = np.array([weight for weight, _ in spec.parts])
    cdf = np.cumsum(weights) / weights.sum()
    samplers = [LengthSampler(part) for _, part in spec.parts]

    def draw(n: int, rng: np.random.Generator) -> Int64s:
        which = np.minimum(np.searchsorted(cdf, rng.random(n), side="right"), len(samplers) - 1)
        out = np.empty(n, dtype=np.int64)
        for i, sampler in enumerate(samplers):
            mask = which == i
            out[mask] = sampler.draw(int(mask.sum()), rng)
        return out

    return draw


def _lognormal_parameters(spec: Lengths) -> tuple[float, float]:
    variance = math.log1p(spec.cv**2)
    return math.log(spec.mean) - variance / 2, math.sqrt(variance)


def _zipf_table(spec: Lengths) -> tuple[Int64s, Floats]:
    high = spec.low if spec.high is None else spec.high
    support = np.arange(spec.low, high + 1, dtype=np.int64)
    weights = support.astype(np.float64) ** -spec.alpha
    return support, weights / weights.sum()


def mean_of(spec: Lengths) -> float:
    """The mean token count that :func:`sample` draws, clipping and rounding included."""
    return moments_of(spec)[0]


def moments_of(spec: Lengths, *, at_least: int = 0, at_most: int | None = None) -> tuple[float, float]:
    """E[Y] and E[Y^2] of the token count Y that :func:`sample` draws, clipped once more to [at_least, at_most].

    Raises ValueError that lists every fault.
    """
    faults = faults_of(spec)
    if faults:
        raise ValueError(f"{spec.distribution} length: " + "; ".join(faults))
    top = _NO_HIGH if at_most is None else at_most
    low, high = (min(max(bound, at_least), top) for bound in (spec.low, _NO_HIGH if spec.high is None else spec.high))
    return _moments(spec, low, high)


def _moments(spec: Lengths, low: int, high: int) -> tuple[float, float]:
    """Moments of a draw of ``spec`` when it is clipped to [low, high] at last."""
    match spec.distribution:
        case Distribution.MIXTURE:
            total = sum(weight for weight, _ in spec.parts)
            # Clipping twice is clipping once to the inner bounds clipped by the outer ones.
            inner = [
                (
                    w / total,
                    _moments(p, *(min(max(b, low), high) for b in (p.low, _NO_HIGH if p.high is None else p.high))),
                )
                for w, p in spec.parts
            ]
            return sum(w * m[0] for w, m in inner), sum(w * m[1] for w, m in inner)
        case Distribution.NORMAL | Distribution.LOGNORMAL if spec.cv > 0:
            return _continuous_moments(spec, low, high)
        case Distribution.ZIPF:
            support, probabilities = _zipf_table(spec)
        case Distribution.UNIFORM:
            return _uniform_moments(spec, low, high)
        case Distribution.EMPIRICAL:
            support, counts = np.unique(np.asarray(spec.values, dtype=np.int64), return_counts=True)
            probabilities = counts / counts.sum()
        case _:
            support, probabilities = np.array([round(spec.mean)], dtype=np.int64), np.ones(1)
    clipped = np.clip(support, low, high).astype(np.float64)
    return float(probabilities @ clipped), float(probabilities @ clipped**2)


def _uniform_moments(spec: Lengths, low: int, high: int) -> tuple[float, float]:
    """Uniform over [spec.low, spec.high], clipped: what lies outside [low, high] sits on its ends."""
    first, last = spec.low, _NO_HIGH if spec.high is None else spec.high
    a, b = min(max(first, low), high), min(max(last, low), high)
    n = last - first + 1
    inside = max(0, min(last, high) - max(first, low) + 1)
    below = min(n, max(0, low - first))
    above = n - inside - below
    mean = (a + b) / 2
    square = mean**2 + ((b - a + 1) ** 2 - 1) / 12
    return (
        (inside * mean + below * low + above * high) / n,
        (inside * square + below * low**2 + above * high**2) / n,
    )


def _continuous_moments(spec: Lengths, low: int, high: int) -> tuple[float, float]:
    """The sums of the module docstring: term by term up to 2^16, beyond that as integrals (there the survival is smooth
    on the scale of one token, so that the midpoint rule errs below 1e-9).
    """
    survival, reach = _survival_of(spec)
    top = min(high, max(low + 1, math.ceil(reach)))
    exact_to = min(top, low + _EXACT_TERMS)
    k = np.arange(low, exact_to, dtype=np.float64)
    s = survival(k + 0.5)
    mean = low + float(s.sum())
    square = low**2 + float(((2 * k + 1) * s).sum())
    if top > exact_to:
        x = np.geomspace(exact_to, top, _TAIL_POINTS)
        s = survival(x)
        steps = np.diff(x)
        mean += float((steps * (s[1:] + s[:-1])).sum() / 2)
        integrand = 2 * x * s
        square += float((steps * (integrand[1:] + integrand[:-1])).sum() / 2)
    return mean, square


def _survival_of(spec: Lengths) -> tuple[Callable[[Floats], Floats], float]:
    """P(X > x) of the number before rounding, and an x beyond which it contributes nothing."""
    from scipy.special import ndtr  # noqa: PLC0415 (scipy is slow to import and only this needs it)

    if spec.distribution is Distribution.NORMAL:
        sd = spec.cv * spec.mean
        return lambda x: np.asarray(ndtr((spec.mean - x) / sd)), spec.mean + _TAIL_SIGMAS * sd
    mu, sigma = _lognormal_parameters(spec)
    # The second moment lives around exp(mu + 2 sigma^2).
    reach = math.exp(min(mu + 2 * sigma**2 + _TAIL_SIGMAS * sigma, 700.0))

    def survival(x: Floats) -> Floats:
        return np.asarray(ndtr((mu - np.log(np.maximum(x, 1e-300))) / sigma))

    return survival, reach
