"""Readers of public trace formats into :class:`loadgen.trace.rows.TraceRows`, one format a module.

To add a format: a module with ``NAME``, ``matches(head)`` and ``read(path)``, and its entry in ``detect``.
"""
