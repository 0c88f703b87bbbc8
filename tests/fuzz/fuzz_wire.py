"""Coverage-guided fuzzing of the HTTP and SSE decoding: ``make fuzz``, or ``python -m tests.fuzz.fuzz_wire SECONDS``.

Needs ``atheris`` (libFuzzer for Python), which the make target installs. The properties are those of
:mod:`tests.fuzz.wire_properties`; an input that breaks one is written to ``crash-*`` and printed.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["backends.wire"]):
    from tests.fuzz.wire_properties import SEEDS, check


def main() -> None:
    seconds = sys.argv[1] if len(sys.argv) > 1 else "60"
    loop = asyncio.new_event_loop()

    def one(data: bytes) -> None:
        if len(data) >= 4:
            check(data[0], data[4:], data[1:4], loop)

    with tempfile.TemporaryDirectory() as corpus:
        for head in range(6):
            for number, seed in enumerate(SEEDS):
                (Path(corpus) / f"{head}-{number}").write_bytes(bytes([head, 7, 90, 200]) + seed)
        atheris.Setup([sys.argv[0], f"-max_total_time={seconds}", "-max_len=2048", corpus], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
