"""An interval belongs to the parameter that is printed beside it, and holds it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from scheduler.calibration.jackknife import jackknife
from scheduler.server_model.spec import StepLaw

POSITIVE = st.floats(1e-3, 1e5)


def laws(values):
    return [StepLaw(a_us=value, b_us=1.0, c_us=0.0, d_us=0.0, offset_us=0.0) for value in values]


@given(POSITIVE, st.lists(POSITIVE, min_size=3, max_size=9))
def test_an_interval_holds_its_own_estimate_wherever_the_other_fits_lie(value, without):
    found = jackknife(laws([value])[0], laws(without))["a_us"]
    assert found.value == value
    assert found.low <= value <= found.high


def test_of_a_mean_the_jackknife_is_the_t_interval():
    """The delete-one jackknife of a mean is exact; here of the mean logarithm of eight captures."""
    logs = np.random.default_rng(1).normal(3.0, 0.2, 8)
    fits = [float(np.exp(np.delete(logs, i).mean())) for i in range(8)]
    found = jackknife(laws([float(np.exp(logs.mean()))])[0], laws(fits))["a_us"]
    oracle = stats.t.interval(0.95, 7, logs.mean(), logs.std(ddof=1) / 8**0.5)
    assert (found.low, found.high) == pytest.approx(tuple(np.exp(oracle)))


def test_two_captures_or_a_parameter_set_to_0_have_none():
    assert jackknife(laws([1.0])[0], laws([1.0, 2.0])) == {}
    full, *fits = [StepLaw(a_us=1.0, b_us=b, c_us=0.0, d_us=0.0, offset_us=0.0) for b in (1.0, 1.0, 0.0, 2.0)]
    assert set(jackknife(full, fits)) == {"a_us"}
