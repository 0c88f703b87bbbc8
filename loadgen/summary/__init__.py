"""The summary of a run: what it holds (``schema``), how it is computed from a recorder (``build``), where it ran
(``environment``), and its files (``files``). Never here: rendering.
"""

from loadgen.summary.build import summarise
from loadgen.summary.files import SummaryError, read_summary, write_summary
from loadgen.summary.schema import Summary

__all__ = ["Summary", "SummaryError", "read_summary", "summarise", "write_summary"]
