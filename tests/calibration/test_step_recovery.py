"""benchmarks/step_spells.py finds the steps of a run from its chunks' stamps."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.step_spells import LAW, prefills, recover


def chunks(ends_ms: list[float], late_ms: float) -> np.ndarray:
    return (np.array(ends_ms) + late_ms) / 1e3


def test_steps_are_told_apart_by_streams_that_repeat_and_by_silence() -> None:
    ends = [0.0, 5.0, 12.0, 30.0, 36.0, 41.0]  # of steps; the second stream's prompt is in the fourth
    steps = recover([(40, chunks(ends, 0.0)), (300, chunks(ends[3:], 0.4))])

    assert steps.at * 1e3 == pytest.approx(ends)
    assert steps.prefilled.tolist() == [40, 0, 0, 300, 0, 0]
    assert steps.decoders.tolist() == [0, 1, 1, 1, 2, 2]
    assert prefills(steps).tolist() == [3]


def test_what_is_over_the_law_is_measured_less_the_law_of_what_decodes() -> None:
    slow_ms = 18.0
    steps = recover([(1000, chunks([0.0, slow_ms, 2 * slow_ms], 0.0))])

    law_ms = [(LAW.a_us + LAW.c_us + LAW.d_us * context) / 1e3 for context in (1001, 1002)]
    assert steps.over[1:] == pytest.approx([slow_ms - law for law in law_ms])


def test_a_prefill_that_fits_a_graph_or_has_a_neighbour_is_not_one_of_those_compared() -> None:
    ends = [7.0 * k for k in range(9)]
    in_a_graph = recover([(40, chunks(ends, 0.0)), (128, chunks(ends[3:], 0.4))])
    neighbours = recover([(40, chunks(ends, 0.0)), (300, chunks(ends[3:], 0.4)), (300, chunks(ends[4:], 0.8))])

    assert prefills(in_a_graph).tolist() == []
    assert prefills(neighbours).tolist() == []
