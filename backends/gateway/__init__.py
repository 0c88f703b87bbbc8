"""The gateway: a queue policy in front of real servers, for any OpenAI client. An HTTP reverse proxy.

Layers, top down: ``cli`` -> ``server`` (sockets, drain, reload) -> ``app`` (routes, who asks) -> ``turn`` (one request,
from the queue to its answer) -> ``relay`` (one response of an upstream, as its bytes arrive) -> ``upstreams`` (sockets and
health). ``config``, ``identity``, ``ask``, ``estimate``, ``refusal``, ``passing``, ``fold`` each know one thing and do no I/O;
``metrics`` and ``logs`` tell what happened, never what was said. Never here: in which order requests are served
(``scheduler``), or files (an injected ``on_outcome`` records).
"""
