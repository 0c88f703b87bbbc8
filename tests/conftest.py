"""For all tests: hypothesis judges what is right, never how long it took on a machine that others use too."""

from hypothesis import settings

settings.register_profile("lmperf", deadline=None)
settings.load_profile("lmperf")
