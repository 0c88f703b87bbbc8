"""Files that are whole or not there: a reader never sees half of one, nor does a kill leave one."""

from __future__ import annotations

from pathlib import Path


def write_whole(path: Path, data: bytes) -> Path:
    """Put ``data`` at ``path`` in one step, in place of what was there; the path. Raises OSError."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(data)
    return partial.replace(path)
