"""Exit codes: the documented numbers, and which one wins."""

from __future__ import annotations

from itertools import permutations

from lmperf.exit_codes import PRECEDENCE, ExitCode, worst


def test_the_numbers_are_the_documented_ones():
    """Scripts depend on them: they never change."""
    assert {code.name: int(code) for code in ExitCode} == {
        "OK": 0,
        "UNDECIDED": 98,
        "BROKEN": 99,
        "BAD_CONFIG": 104,
        "INTERRUPTED": 105,
        "BACKEND": 106,
        "INVALID": 107,
        "REGRESSION": 108,
    }


def test_each_has_a_meaning_of_its_own():
    """Every code carries the sentence that help prints."""
    assert len({code.meaning for code in ExitCode}) == len(ExitCode)
    assert all(code.meaning for code in ExitCode)


def test_precedence_is_105_107_99_98():
    """Whatever the order in which they are found, the documented one wins; success only when there is nothing else."""
    documented = [ExitCode(number) for number in (105, 107, 99, 98)]
    for size in range(1, 5):
        for codes in permutations(documented, size):
            assert worst([ExitCode.OK, *codes]) == min(codes, key=documented.index)
    assert worst([]) == ExitCode.OK == worst([ExitCode.OK])


def test_every_code_has_a_rank():
    """No code is forgotten in the order, and a code beats itself."""
    assert sorted(PRECEDENCE) == sorted(ExitCode)
    assert all(worst([code]) == code for code in ExitCode)
