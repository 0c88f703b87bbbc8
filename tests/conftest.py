"""For all tests: hypothesis judges what is right, never how long it took on a machine that others use too; and what is tested
are the sources, not what was once compiled from them."""

import pytest
from hypothesis import settings

from lmperf import compiled

settings.register_profile("lmperf", deadline=None)
settings.load_profile("lmperf")

if compiled.state().warning:
    pytest.exit(compiled.state().warning, returncode=4)
