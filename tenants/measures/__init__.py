"""The statistics that judge tenants: percentiles that count what never finished, attainment, goodput, decay,
interference, fairness and their intervals. Pure functions over ints and numpy columns.
"""
