"""Traces: one row a request, ours (parquet) and the public ones.

``schema`` says what a row and the file's header hold, ``encode`` turns outcomes into rows, ``writer`` streams them to
disk and merges them, ``reader`` reads them back; ``rows`` is the light in-memory form that public formats (``public``)
are read into and that ``transform`` and ``tenant_rule`` work on. Never here: statistics, clocks, network.
"""
