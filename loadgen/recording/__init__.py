"""The parts of the recorder: stamps to measures, compact columns, histograms, time series. Pure, without clocks or
I/O.
"""
