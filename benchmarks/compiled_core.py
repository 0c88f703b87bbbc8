"""What compiling the scheduling core brings: plain Python and compiled by turns, on one core, and whether results are equal.

    python -m benchmarks.compiled_core [--repeats 5]

Both are copies of this checkout's sources, so that nothing of it changes. The work is that of ``benchmarks.simulator_speed``:
the Azure conversation trace at 0.9 of saturation; figures are simulated requests per second of CPU time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.plain_copy import copied
from benchmarks.simulator_speed import POLICIES, TRACE, job
from loadgen.offline.cell import figures, record_cell

HOME = Path(__file__).resolve().parent.parent


def once(policy: str) -> None:
    """One run in this process; prints its speed and a digest of all rows and figures."""
    work = job(policy)
    start = time.process_time()
    recorder = record_cell(work)
    columns = recorder.columns()
    found = figures(work, columns)
    took_s = time.process_time() - start
    digest = hashlib.sha256(repr(found).encode())
    for values in (columns.arrival_ns, columns.end_ns, columns.output_tokens):
        digest.update(values.tobytes())
    print(json.dumps({"requests_per_s": len(columns) / took_s, "digest": digest.hexdigest()}))


def run(folder: Path, policy: str) -> dict[str, float | str]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.compiled_core", "--once", policy],
        cwd=folder,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, float | str] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--once", metavar="POLICY", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.once:
        once(args.once)
        return
    if not TRACE.exists():
        print(f"skipped: {TRACE} is not there")
        return
    with tempfile.TemporaryDirectory(prefix="lmperf-") as work:
        (Path(work) / "shared").symlink_to(HOME.parent / "shared")
        plain, compiled = copied(Path(work) / "plain"), copied(Path(work) / "compiled")
        done = subprocess.run([sys.executable, "-m", "lmperf.compiled"], cwd=compiled, check=False)
        if done.returncode:
            print("skipped: nothing can be compiled here")
            return
        print(f"simulated requests per s of CPU, medians of {args.repeats} by turns")
        print(f"{'policy':12s} {'plain':>10s} {'compiled':>10s} {'ratio':>7s}")
        for policy in POLICIES:
            pairs = [(run(plain, policy), run(compiled, policy)) for _ in range(args.repeats)]
            ratio = median(float(b["requests_per_s"]) / float(a["requests_per_s"]) for a, b in pairs)
            speeds = [median(float(pair[side]["requests_per_s"]) for pair in pairs) for side in (0, 1)]
            equal = len({each["digest"] for pair in pairs for each in pair}) == 1
            print(
                f"{policy:12s} {speeds[0]:10,.0f} {speeds[1]:10,.0f} {ratio:7.2f}  {'equal' if equal else 'RESULTS DIFFER'}",
                flush=True,
            )


if __name__ == "__main__":
    main()
