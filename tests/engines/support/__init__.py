"""What the engine tests stand on: the engine's environment, a tiny model, its server, and the rules a run must keep.

``in_engine`` holds the two files that the *engine's* python runs; nothing here imports them.
"""
