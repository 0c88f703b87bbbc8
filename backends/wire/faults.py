"""What can go wrong with one call, by :class:`scheduler.request.ErrorClass`, in words for people."""

from __future__ import annotations

import errno
import socket
import ssl

from scheduler.request import ErrorClass, Status

TIMEOUTS = frozenset(
    {
        ErrorClass.CONNECT_TIMEOUT,
        ErrorClass.FIRST_TOKEN_TIMEOUT,
        ErrorClass.TOKEN_TIMEOUT,
        ErrorClass.TOTAL_TIMEOUT,
    }
)

SWITCHES = "answered 101, another protocol than HTTP: switching protocols is not supported"

_OUT_OF = {
    errno.EMFILE: "this process has no file descriptor left; raise `ulimit -n`",
    errno.ENFILE: "the machine has no file descriptor left",
    errno.EADDRNOTAVAIL: "no local port left for another connection; reuse connections or widen the port range",
}


class WireError(Exception):
    """One call failed. ``detail`` is one sentence and holds no secret of ours."""

    def __init__(self, error_class: ErrorClass, detail: str) -> None:
        super().__init__(detail)
        self.error_class = error_class
        self.detail = detail

    @property
    def status(self) -> Status:
        """TIMED_OUT for a time-out, else FAILED."""
        return Status.TIMED_OUT if self.error_class in TIMEOUTS else Status.FAILED


def fault_of(exc: OSError, where: str) -> WireError:
    """The fault that an error of the socket, the resolver or TLS stands for; ``where`` names the other end."""
    reason = exc.strerror or str(exc) or type(exc).__name__
    if isinstance(exc, socket.gaierror):
        return WireError(ErrorClass.DNS, f"cannot resolve {where}: {reason}")
    if isinstance(exc, ssl.SSLCertVerificationError):
        return WireError(ErrorClass.TLS, f"TLS with {where}: {exc.verify_message or reason}")
    if isinstance(exc, ssl.SSLError):
        return WireError(ErrorClass.TLS, f"TLS with {where}: {reason}")
    if isinstance(exc, TimeoutError):
        return WireError(ErrorClass.CONNECT_TIMEOUT, f"connecting to {where} timed out")
    if isinstance(exc, ConnectionResetError | BrokenPipeError | ConnectionAbortedError):
        return WireError(ErrorClass.RESET, f"connection to {where} reset: {reason}")
    if exc.errno in _OUT_OF:
        return WireError(ErrorClass.INTERNAL, f"cannot connect to {where}: {_OUT_OF[exc.errno]}")
    return WireError(ErrorClass.REFUSED, f"cannot connect to {where}: {reason}")
