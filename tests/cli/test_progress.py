"""What a line of progress says of the time left."""

from __future__ import annotations

import time

from lmperf.console import Progress


def test_the_time_left_is_said_when_there_is_something_to_tell_it_by(capsys):
    """Not after the first piece of work, which has the start in it."""
    started = time.monotonic() - 30
    Progress().counting("fits", 1, 9, started)
    assert "left" not in capsys.readouterr().err
    Progress().counting("fits", 2, 4, started)
    assert "about 30 s left" in capsys.readouterr().err
