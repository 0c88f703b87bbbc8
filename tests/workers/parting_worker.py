"""A worker whose time is up just as its request is granted a slot: it gives the request up and goes, all in order."""

import asyncio
import pickle
import socket
import sys

from loadgen.workers.link import Link
from loadgen.workers.messages import Ended, FromParent, Ready, Start
from scheduler.events import Arrived, Cancelled
from scheduler.request import Request


async def work(sock):
    started = asyncio.get_running_loop().create_future()

    def take(messages):
        if any(isinstance(message, Start) for message in messages):
            started.set_result(None)

    link = await Link.over(sock, FromParent, take, lambda: None)
    link.send(Ready())
    await started
    link.send(Arrived(1, Request(id=1, tenant="a", arrival_ns=0, prompt_tokens=5)))
    link.send(Cancelled(2, 1))
    link.send(Ended(pickle.dumps("its report")))
    link.close()
    await link.closed


if __name__ == "__main__":
    asyncio.run(work(socket.socket(fileno=int(sys.argv[1]))))
