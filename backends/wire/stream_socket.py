"""A connected TCP socket that knows when its bytes arrived.

Linux stamps every segment as it is received (SO_TIMESTAMPNS, socket(7)), whatever this process does at that moment. So the
stamp of a token does not depend on how soon a busy event loop gets round to it. Where the system does not stamp, the
instant of the read is taken.

Several segments that wait to be read come together, with the stamp of the last of them.
"""

from __future__ import annotations

import asyncio
import platform
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from backends.protocol import Clock

if TYPE_CHECKING:
    from mypy_extensions import i64  # an int, and one of the machine's where this is compiled (lmperf.compiled)

_READ_MOST = 64 << 10
_TIMESPEC = struct.Struct("qq")
_timespec = _TIMESPEC.unpack
_OFFSET_KEPT_NS, _OLDEST_STAMP_NS = 5_000_000, 20_000_000
_AT_ONCE_NS, _COMPARED_MOST, _STEP_NS = 20_000, 3, 1_000_000
_ANCILLARY_MOST = socket.CMSG_SPACE(_TIMESPEC.size) if hasattr(socket, "CMSG_SPACE") else 0
_SO_TIMESTAMPNS = 35
"""asm-generic/socket.h; Python does not name it, and a few architectures number it otherwise."""

STAMPS_SUPPORTED = sys.platform == "linux" and platform.machine() in {"x86_64", "aarch64"}


class Sink(Protocol):
    """Who takes what happens on a socket. ``lost`` comes last and exactly once, whoever closed it."""

    def received(self, data: bytes, arrived_ns: int) -> None: ...

    def ended(self) -> None:
        """The peer will send no more; the socket closes by itself."""

    def drained(self) -> None:
        """Everything written is with the system now, after some of it had to wait."""

    def lost(self, exc: OSError | None) -> None: ...


class Delivers(Protocol):
    """``deliver`` takes what comes in, with the ns of its receipt; it may be set to another one at any time."""

    deliver: Callable[[bytes, int], None]


class Link(Delivers, Protocol):
    """What carries bytes for a connection: a socket, or TLS over one. ``start`` has it deliver to the sink's ``received``."""

    @property
    def unsent(self) -> int:
        """Bytes written that the system has not taken yet."""

    def start(self, sink: Sink) -> None: ...

    def write(self, data: bytes) -> None: ...

    def abort(self) -> None:
        """Close now; what is unsent is dropped."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class ReceiptClock:
    """From the system's stamps, which are on the clock that people set (``wall``), to ours.

    Both clocks are read together at most once in 5 ms, in which the slewing of a clock (500 ppm) comes to 2.5 us. A process
    that was put aside between the two readings reads again, or a whole burst would be moved by as much.

    What was stamped before somebody set the clock may be read after it, so once the clocks are found to have been moved a stamp
    may mean either of two instants. The later one counts that is not after the reading: the right one, unless the loop was
    away for longer than the clock was moved by; then it is late, as if the system did not stamp. A step
    forward by less than 5 ms may go unnoticed for as long; one back by less than 20 ms, or by as much as the loop was away, for
    20 ms, and its rows are marked where stamps go back.
    """

    __slots__ = (
        "_ages",
        "_before_ns",
        "_clock",
        "_noticed_ns",
        "_wall",
        "_wall_then_ns",
        "from_ns",
        "offset_ns",
        "until_ns",
    )

    def __init__(self, clock: Clock, wall: Clock | None = None) -> None:
        self._clock = clock
        self._wall = wall or time.time_ns
        self.offset_ns: i64 = 0
        self.from_ns: i64 = 0
        self.until_ns: i64 = 0
        self._ages = False
        self.compare_clocks()
        self.until_ns = self.from_ns
        self._before_ns, self._noticed_ns, self._wall_then_ns = self.offset_ns, 0, 0

    def compare_clocks(self) -> None:
        """``offset_ns`` is to be added to stamps from ``from_ns`` to before ``until_ns``."""
        least_ns = now_ns = 0
        for tried in range(_COMPARED_MOST):
            before_ns, read_ns = self._clock(), self._wall()
            took_ns = self._clock() - before_ns
            if tried == 0 or took_ns < least_ns:
                least_ns, now_ns = took_ns, read_ns
                self.offset_ns = before_ns - read_ns
            if took_ns <= _AT_ONCE_NS:
                break
        self.from_ns, self.until_ns = now_ns - _OLDEST_STAMP_NS, now_ns + _OFFSET_KEPT_NS

    def arrival_ns(self, stamp_ns: int) -> int:
        """When bytes arrived that were read just now and whose stamp is not from ``from_ns`` to before ``until_ns``; to be
        called on the loop.
        """
        offset_ns = self.offset_ns
        self.compare_clocks()
        read_ns = self._clock()
        if not -_STEP_NS <= self.offset_ns - offset_ns <= _STEP_NS:
            self._before_ns, self._noticed_ns, self._wall_then_ns = offset_ns, read_ns, self._wall()
        self.from_ns = max(self.from_ns, self._wall_then_ns)
        if not self._ages:
            # Or, set back by as much as nothing came, the clock would give stamps of these very milliseconds again.
            self._ages = True
            asyncio.get_running_loop().call_later(_OLDEST_STAMP_NS / 1e9, self._aged)
        arrived_ns, or_ns = stamp_ns + self.offset_ns, stamp_ns + self._before_ns
        if self._noticed_ns < arrived_ns <= read_ns:
            return arrived_ns
        return max((ns for ns in (arrived_ns, or_ns) if ns <= read_ns), default=read_ns)

    def _aged(self) -> None:
        self._ages = False
        self.until_ns = self.from_ns


class StreamSocket:
    """Reads and writes one socket on the running loop. ``clock``: ns; stamps are on it. ``system_stamps``: take the
    system's stamps of receipt where it has them. ``receipt`` is shared by sockets of one clock.
    """

    def __init__(
        self, sock: socket.socket, clock: Clock, *, system_stamps: bool = True, receipt: ReceiptClock | None = None
    ) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        self._clock = clock
        self._receipt = receipt or ReceiptClock(clock)
        self._loop = asyncio.get_running_loop()
        self._sink: Sink | None = None
        self.deliver: Callable[[bytes, int], None]
        self._buffer = bytearray()
        self._closed = False
        self._stamped = system_stamps and STAMPS_SUPPORTED
        if self._stamped:
            try:
                sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            except OSError:  # a sandbox without it
                self._stamped = False
        self._read = self._stamping_reader() if self._stamped else self._reader()

    @classmethod
    async def connect(
        cls,
        address: str,
        port: int,
        clock: Clock,
        *,
        system_stamps: bool = True,
        receipt: ReceiptClock | None = None,
    ) -> StreamSocket:
        """Connect to an IPv4 or IPv6 address. Raises OSError."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.settimeout(0)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(sock, (address, port))
            return cls(sock, clock, system_stamps=system_stamps, receipt=receipt)
        except BaseException:
            sock.close()
            raise

    @property
    def unsent(self) -> int:
        return len(self._buffer)

    def start(self, sink: Sink) -> None:
        """Hand what comes to ``sink`` from now on; called again, to another one."""
        self._sink = sink
        self.deliver = sink.received
        self.resume_reading()

    def write(self, data: bytes) -> None:
        """Hand ``data`` to the system at once, as far as it takes it; the rest as soon as it does."""
        if self._closed:
            return
        if self._buffer:
            self._buffer += data
            return
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as exc:
            self._close(exc)
            return
        if sent < len(data):
            self._buffer += memoryview(data)[sent:]
            self._loop.add_writer(self._fd, self._write_more)

    def abort(self) -> None:
        self._close(None)

    def pause_reading(self) -> None:
        if not self._closed:
            self._loop.remove_reader(self._fd)

    def resume_reading(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._fd, self._read)

    def _stamping_reader(self) -> Callable[[], None]:
        """What the loop calls for a socket whose receipt is stamped. A closure: this runs once a token, and touches as little
        memory as can be."""
        recvmsg, clock, receipt, end, failed = self._sock.recvmsg, self._clock, self._receipt, self._end, self._close

        def read() -> None:
            try:
                data, ancillary, _, _ = recvmsg(_READ_MOST, _ANCILLARY_MOST)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as exc:
                failed(exc)
                return
            if ancillary:
                seconds: i64
                ns: i64
                seconds, ns = _timespec(ancillary[0][2])
                stamp_ns = seconds * 1_000_000_000 + ns
                if receipt.from_ns <= stamp_ns < receipt.until_ns:
                    arrived_ns = stamp_ns + receipt.offset_ns
                else:
                    arrived_ns = receipt.arrival_ns(stamp_ns)
            else:
                arrived_ns = clock()
            if not data:
                end()
                return
            try:
                self.deliver(data, arrived_ns)
            except BaseException:
                failed(None)  # or the loop would come back to what is left unread, for ever
                raise

        return read

    def _reader(self) -> Callable[[], None]:
        recv, clock, end, failed = self._sock.recv, self._clock, self._end, self._close

        def read() -> None:
            try:
                data = recv(_READ_MOST)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as exc:
                failed(exc)
                return
            if not data:
                end()
                return
            try:
                self.deliver(data, clock())
            except BaseException:
                failed(None)
                raise

        return read

    def _end(self) -> None:
        assert self._sink is not None, "reads begin with start"
        self._sink.ended()
        self._close(None)

    def _write_more(self) -> None:
        try:
            sent = self._sock.send(self._buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as exc:
            self._close(exc)
            return
        del self._buffer[:sent]
        if not self._buffer:
            self._loop.remove_writer(self._fd)
            if self._sink is not None:
                self._sink.drained()

    def _close(self, exc: OSError | None) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._buffer.clear()
        self._sock.close()
        if self._sink is not None:
            # Not at once: who closes a socket does not expect to be called back by it.
            self._loop.call_soon(self._sink.lost, exc)
