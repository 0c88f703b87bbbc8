"""The embedded server: OpenAI-compatible, with the timing of the server model run in real time behind a real socket.

Layers, top down: ``process`` and ``cli`` (its own process) -> ``server`` -> ``app`` (HTTP) -> ``core`` -> ``engine``
(steps on absolute times). ``tokenizer`` and ``answers`` decide what is said, ``chunks`` and ``sinks`` how it is put
on the wire, ``metrics``, ``stats`` and ``truth`` what is told about it. Never here: step times or batching
(``scheduler.server_model``).
"""
