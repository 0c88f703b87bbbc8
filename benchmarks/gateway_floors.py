"""What forwarding alone costs: two pass-throughs without queue, tenants, limits or logs, in the usual frameworks.

    python benchmarks/gateway_floors.py aiohttp|starlette PORT UPSTREAM

Started as a file, by whichever python has the framework; imports nothing of lmperf.
"""

from __future__ import annotations

import sys

NOT_FORWARDED = frozenset({"host", "content-length", "connection"})


def serve_aiohttp(port: int, upstream: str) -> None:
    """40 lines of aiohttp on both sides, over uvloop."""
    import aiohttp  # noqa: PLC0415 (one python has this framework, another the other)
    import uvloop  # noqa: PLC0415
    from aiohttp import web  # noqa: PLC0415

    app = web.Application(client_max_size=1 << 26)
    client = web.AppKey("client", aiohttp.ClientSession)

    async def session(_):
        connector = aiohttp.TCPConnector(limit=0)
        app[client] = aiohttp.ClientSession(upstream, auto_decompress=False, connector=connector)
        yield
        await app[client].close()

    async def forward(request):
        headers = {name: value for name, value in request.headers.items() if name.lower() not in NOT_FORWARDED}
        body = await request.read()
        async with app[client].request(request.method, request.path_qs, data=body, headers=headers) as answer:
            response = web.StreamResponse(status=answer.status, headers={"content-type": answer.content_type})
            response.enable_chunked_encoding()
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response

    app.cleanup_ctx.append(session)
    app.router.add_route("*", "/{path:.*}", forward)
    uvloop.install()
    web.run_app(app, host="127.0.0.1", port=port, access_log=None, print=None)


def serve_starlette(port: int, upstream: str) -> None:
    """The same in Starlette and httpx under uvicorn, with uvloop and httptools: what a FastAPI proxy is made of."""
    import httpx  # noqa: PLC0415 (one python has this framework, another the other)
    import uvicorn  # noqa: PLC0415
    from starlette.applications import Starlette  # noqa: PLC0415
    from starlette.background import BackgroundTask  # noqa: PLC0415
    from starlette.responses import StreamingResponse  # noqa: PLC0415
    from starlette.routing import Route  # noqa: PLC0415

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    client = httpx.AsyncClient(base_url=upstream, timeout=None, limits=limits)

    async def forward(request):
        headers = {name: value for name, value in request.headers.items() if name not in NOT_FORWARDED}
        sent = client.build_request(request.method, request.url.path, content=await request.body(), headers=headers)
        answer = await client.send(sent, stream=True)
        kind = answer.headers.get("content-type")
        return StreamingResponse(
            answer.aiter_raw(), answer.status_code, media_type=kind, background=BackgroundTask(answer.aclose)
        )

    app = Starlette(routes=[Route("/{path:path}", forward, methods=["GET", "POST"])])
    uvicorn.run(
        app, host="127.0.0.1", port=port, loop="uvloop", http="httptools", log_level="warning", access_log=False
    )


if __name__ == "__main__":
    kind, port, upstream = sys.argv[1:]
    {"aiohttp": serve_aiohttp, "starlette": serve_starlette}[kind](int(port), upstream)
