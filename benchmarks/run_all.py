"""Every benchmark that the docs quote, one after another: ``make bench``. Each can be run alone.

Figures are ratios inside one run on one machine; run it on a quiet one. Peers that are not installed are skipped, and said so.
"""

from __future__ import annotations

import subprocess
import sys

BENCHMARKS = (
    "benchmarks.policy_cost",
    "benchmarks.compiled_core",
    "benchmarks.simulator_speed",
    "benchmarks.simulator_scale",
    "benchmarks.fidelity",
    "benchmarks.vtc_a10g",
    "benchmarks.routing",
    "benchmarks.client_cost",
    "benchmarks.client_pairs",
    "benchmarks.client_truth",
    "benchmarks.client_workers",
    "benchmarks.gateway_overhead",
    "benchmarks.policy_transfer",
)


def _run(name: str) -> int | None:
    """The exit code of one; None where Ctrl-C cut it short, which it has heard too: it is let say what it found."""
    with subprocess.Popen([sys.executable, "-m", name]) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()
            return None


def main() -> int:
    failed = []
    for name in BENCHMARKS:
        print(f"== {name}", flush=True)
        code = _run(name)
        if code is None:
            print(f"interrupted in {name}")
            return 1
        if code:
            failed.append(name)
    for name in failed:
        print(f"failed: {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
