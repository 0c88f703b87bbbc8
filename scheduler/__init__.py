"""The scheduling core: requests, policies, the dispatcher, the server model, and the two thin drivers that run them.

Everything but ``scheduler.drivers`` is free of I/O: no clock read, no await, no log call, no randomness of its own. Time
comes in as ``now_ns`` (int, ns since the run's start). Never here: sockets, files, wall clocks, global random.
"""
