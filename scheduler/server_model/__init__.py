"""The server model: how long a step of a continuously batching engine takes, and who gets a token in it.

The simulator runs it in virtual time, the embedded server in real time: one model, two drivers.
"""
