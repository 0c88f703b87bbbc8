"""Limits and time-outs of the wire client, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WireOptions:
    """``first_token_timeout_s`` and ``total_timeout_s`` (from the start of the call) are for use without a scheduler,
    which has its own. ``token_timeout_s`` is the longest gap after a chunk with output; keep-alive comments do not
    extend it.

    ``insecure`` accepts any certificate; ``ca_file`` trusts one more authority. ``proxy``: None goes direct whatever
    the environment says, ``"env"`` follows HTTP_PROXY, HTTPS_PROXY and NO_PROXY, a URL is used for everything.
    ``max_connections`` an origin; None is no limit. ``max_event_bytes`` and ``max_header_bytes`` bound what one
    event, and what comes without any body, may take before the stream counts as broken. ``system_stamps``: receipt is
    when the system received the bytes, where it says so; False: when this process read them.
    """

    connect_timeout_s: float = 10.0
    token_timeout_s: float | None = 60.0
    first_token_timeout_s: float | None = None
    total_timeout_s: float | None = None
    insecure: bool = False
    ca_file: str | None = None
    proxy: str | None = None
    max_connections: int | None = None
    max_event_bytes: int = 16 << 20
    max_header_bytes: int = 256 << 10
    max_redirects: int = 3
    done_grace_s: float = 0.1
    system_stamps: bool = True

    def __post_init__(self) -> None:
        for name in ("connect_timeout_s", "token_timeout_s", "first_token_timeout_s", "total_timeout_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be > 0, got {value}")
        if self.max_connections is not None and self.max_connections < 1:
            raise ValueError(f"max_connections must be at least 1, got {self.max_connections}; None is no limit")
