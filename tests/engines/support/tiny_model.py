"""The tiny Llama that the engine tests serve, built once per version of its script, in the user's cache."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from tests.engines.support.environment import Say, engines_folder

SCRIPT = Path(__file__).with_name("in_engine") / "build_tiny_llama.py"
CONTEXT_TOKENS = 2048
END_TOKEN_ID = 1
_ROOT = Path(__file__).resolve().parents[3]
_LAYERS = ("tenants", "scheduler", "backends", "loadgen", "lmperf")


def tiny_llama(python: Path, *, say: Say = print) -> Path:
    """The model's folder. ``python``: that of the engine's environment. Raises RuntimeError with the script's words."""
    digest = hashlib.sha256(SCRIPT.read_bytes()).hexdigest()[:12]
    folder = engines_folder() / f"tiny-llama-{digest}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    say(f"building {folder}")
    texts = [str(path) for layer in _LAYERS for path in sorted((_ROOT / layer).rglob("*.py"))]
    done = subprocess.run([str(python), str(SCRIPT), str(folder), *texts], capture_output=True, text=True, check=False)
    if done.returncode != 0 and not folder.is_dir():
        raise RuntimeError(f"{SCRIPT.name} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return folder
