"""The HTML report: one offline file that a browser opens without a network.

``curves`` is what a report needs of a recorder beyond the summary; ``comparison`` what it says of policies side by
side; ``sentences`` the words, ``text`` the numbers, ``run_plots`` and ``comparison_plots`` the figures (as plain data),
``page`` the file around them. Never here: measuring.
"""

from loadgen.report.comparison import Comparison, FidelityTable
from loadgen.report.curves import Curve, curves_of, curves_of_histograms
from loadgen.report.render import render_comparison, render_run, write_comparison, write_report

__all__ = [
    "Comparison",
    "Curve",
    "FidelityTable",
    "curves_of",
    "curves_of_histograms",
    "render_comparison",
    "render_run",
    "write_comparison",
    "write_report",
]
