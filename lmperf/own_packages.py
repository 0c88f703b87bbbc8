"""The layers' packages have common names (``scheduler`` and ``backends`` are on PyPI too): are they still ours?

Another distribution that installs a top-level package of the same name overwrites ours, file by file, and removes it when
it is uninstalled. The command looks before it starts, so that this is one clear sentence and not an ImportError in the
middle of a run.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

LAYERS = {
    "tenants": "tenant.py",
    "scheduler": "dispatcher.py",
    "backends": "protocol.py",
    "loadgen": "recorder.py",
}


def foreign_packages() -> list[str]:
    """A sentence for each layer that is missing or somebody else's; empty when all is well."""
    home = Path(__file__).resolve().parent.parent
    found = []
    for name, witness in LAYERS.items():
        spec = importlib.util.find_spec(name)
        locations = [] if spec is None else [Path(p).resolve() for p in spec.submodule_search_locations or []]
        if spec is not None and not locations:
            found.append(f"the module {name!r} at {spec.origin} hides lmperf's package (that is at {home / name})")
        elif not locations:
            found.append(f"lmperf's package {name!r} is missing (expected at {home / name})")
        elif locations[0] != home / name:
            found.append(f"the package {name!r} at {locations[0]} is not lmperf's (that is at {home / name})")
        elif not (locations[0] / witness).is_file():
            found.append(f"the package {name!r} at {locations[0]} was overwritten by another distribution of that name")
    return found


REMEDY = (
    "install lmperf into an environment of its own (pipx install lmperf, or a new virtual environment), or uninstall the "
    "other distribution and reinstall lmperf"
)
