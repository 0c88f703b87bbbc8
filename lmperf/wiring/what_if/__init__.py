"""What if: a captured trace with something different, against the trace as it was, under every policy."""
