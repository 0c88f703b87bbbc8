"""What a simulation cannot go on from."""

from __future__ import annotations


class SimulationError(RuntimeError):
    """A workload that cannot be simulated; the message names the request."""
