"""The load generator and what it writes: workloads, arrivals, the run loop, the recorder, traces and histogram logs,
summaries, comparison, the report. Never here: policy logic."""
