"""The streaming wire client: one call in, every token's time of arrival out.

The measuring hot path is an ``asyncio.Protocol`` over httptools; the event loop does TLS; uvloop where it runs, plain
asyncio otherwise. It is not aiohttp because its client hands data to a task through a stream reader: the time stamp is
then taken when the task gets its turn, and every token costs more than twice the CPU (measured with 64 streams on two
cores: 31 us a token and a P99 TTFT 19 ms too high, against 13 us and 2.7 ms). aiohttp (:mod:`backends.wire.plain`)
does everything that is not timed.

========== =========================================================================================================
url        what a base URL names                       options    limits and time-outs, as data
sse        bytes to events, without I/O                chunk      what one OpenAI chunk says
tokens     how many tokens each chunk held             answer     a stream's chunks to stamps, counts and its end
response   one HTTP response                           connection one socket
dial       DNS, proxy, TLS                             pool       sockets of one origin, kept alive
head       request heads, redirects, error texts       faults     what went wrong, by class
exchange   one call, from a free socket to its result  client     the whole
========== =========================================================================================================

Never here: which request goes when, statistics, files.
"""
