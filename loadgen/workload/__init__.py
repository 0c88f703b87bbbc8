"""What is sent and when: lengths, arrival times, requests, prompts, and the replay of a trace. Never here: sockets, the
wall clock, global randomness, the reading of trace files.
"""
