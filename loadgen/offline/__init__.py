"""Offline answers: a workload through the simulator, recorded and measured exactly like a live run."""
