"""What `lmperf calibrate` prints fits a terminal of 80 columns, and says where each interval comes from."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from lmperf.cli.calibration_text import print_calibration, print_ranking
from lmperf.wiring.ranked import ATTAINED as RANKED
from lmperf.wiring.ranked import TTFT_P99, RankedPolicy, Ranking
from scheduler.calibration.calibrate import Calibration, HeldOut
from scheduler.calibration.step_law import Interval95, LawFit
from scheduler.calibration.words import FIGURES
from scheduler.server_model.spec import ServerLimits, ServerModelSpec, StepLaw

LAW = StepLaw(a_us=4962.0, b_us=21.28, c_us=32.46, d_us=0.0, attended_us=0.0008, offset_us=27510.0, stream_us=76.2)
SPANS = LawFit(
    law=LAW,
    intervals={
        "a_us": Interval95(5177.0, 4479.0, 5515.0),
        "b_us": Interval95(20.31, 16.93, 23.52),
        "c_us": Interval95(42.2, 25.8, 66.2),
        "d_us": Interval95(0.0, 0.0, 0.0045),
    },
    condition=19.0,
    warnings=(),
    requests=4148,
    peak_decoding=60,
)  # fmt: skip


def calibration(names, worst=76.2):
    held = tuple(
        HeldOut(
            name,
            StepLaw(a_us=LAW.a_us * (1 + 0.1 * i), b_us=21.0, c_us=30.0, offset_us=26000.0, stream_us=75.0),
            {figure: worst if j < 3 else (-1) ** i * 0.01 * (i + j) for j, figure in enumerate(FIGURES)},
        )
        for i, name in enumerate(names)
    )
    return Calibration(
        ServerModelSpec(name="m", law=LAW, limits=ServerLimits()), SPANS, 1.0, held, (), untold=frozenset({"stream_us"})
    )


def printed(found, width):
    out = io.StringIO()
    print_calibration(Console(file=out, width=width, highlight=False, markup=False), found)
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 128])
def test_names_and_figures_are_whole_at_80_columns(width):
    """Every name of a capture on one line, every error beside its own name, and heads fold between words at most."""
    names = ["saturation", "fifo-baseline (second half)", "fifo-raised"]
    text = printed(calibration(names), width)
    heads = [word for key, title in FIGURES.items() if key != "throughput" for word in title.split()]
    for name in (*names, "mean absolute", "tokens/s", *heads):
        assert name in text, name
    assert "…" not in text
    assert text.count("+7620.0%") == 9
    tables = [line for line in text.splitlines() if any(line.strip().startswith(name) for name in names)]
    assert len(tables) == {60: 9, 80: 6, 128: 3}[width]
    assert all(len(line.rstrip()) <= width for line in tables)


def test_every_interval_is_printed_and_says_what_it_is():
    """Of the refined law by a jackknife over captures, and of the least squares that it started from by a bootstrap."""
    text = printed(calibration(["a", "b", "c"]), 80)
    assert "95%, jackknife over captures" in text
    assert re.search(r"^ *offset +2\.751e\+04 +\[[\d.,e+]+, [\d.,e+]+\] +us of the front", text, re.MULTILINE)
    # It stayed at the guess, so an interval would say nothing.
    assert re.search(r"^ *stream +76\.2 +not told +us of the front end per decoding", text, re.MULTILINE)
    assert "not told: the captures leave it where the fit starts" in text
    assert "a 5,177 [4,479, 5,515], b 20.31 [16.93, 23.52], c 42.2 [25.8, 66.2], d 0 [0, 0.0045]" in text


def with_tenants(found, count):
    """Every tenant's TTFT P50 errs by its number in percent, its attainment by as many points."""
    errors = {
        f"tenant-{i:02d}": {"ttft_p50": 0.01 * i, "tpot_mean": -0.02, "attained": -0.01 * i} for i in range(count)
    }
    return replace(found, held_out=tuple(replace(held, tenants=errors) for held in found.held_out))


def test_each_tenant_of_each_capture_is_shown():
    """The attainment as a difference in points, what is not known as a dash."""
    text = printed(with_tenants(calibration(["quiet", "busy"]), 3), 80)
    shown = re.findall(r"^ +(tenant-\d+) +(\S+) +-2\.0% +(\S+) *$", text, re.MULTILINE)
    each = [("tenant-00", "+0.0%", "-0.0"), ("tenant-01", "+1.0%", "-1.0"), ("tenant-02", "+2.0%", "-2.0")]
    assert shown == each + each
    below = text[text.index("by tenant") :]
    assert re.findall(r"^ (quiet|busy) *$|^ +(tenant-00)", below, re.MULTILINE) == [
        ("quiet", ""),
        ("", "tenant-00"),
        ("busy", ""),
        ("", "tenant-00"),
    ]
    assert "by tenant" not in printed(calibration(["quiet", "busy"]), 80)


def test_many_tenants_are_folded():
    """The worst twelve, each over all captures, and how many are not shown."""
    text = printed(with_tenants(calibration(["quiet", "busy"]), 40), 80)
    assert re.findall(r"tenant-\d+", text) == [f"tenant-{i}" for i in range(39, 27, -1)]
    assert "28 more tenants" in text
    assert "fit.held_out_tenants" in text


def ranking(width, *rows):
    out = io.StringIO()
    loads = tuple(RankedPolicy(name, {RANKED: c, TTFT_P99: 5e9}, {RANKED: s, TTFT_P99: 4e9}) for name, c, s in rows)
    print_ranking(Console(file=out, width=width, highlight=False, markup=False), Ranking((loads,)))
    return out.getvalue()


def test_a_ranking_shows_both_sides_and_how_many_pairs_agree():
    text = ranking(80, ("fifo", 0.125, 0.235), ("slo_aware", 0.97, 0.955))
    assert re.search(r"^ fifo +12\.5 +23\.5 +5,000 +4,000 *$", text, re.MULTILINE)
    assert "by worst tenant attainment 1 of 1 pairs; by TTFT P99 not told" in text
    out = io.StringIO()
    print_ranking(Console(file=out, width=80), Ranking(not_told="all are of one policy (fifo)"))
    assert "not told, all are of one policy (fifo)" in out.getvalue()
