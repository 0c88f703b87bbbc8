"""One embedded server and one finished run for the whole folder: most tests only look at them."""

from __future__ import annotations

import shutil

import pytest
from cli_support import invoke, served, two_tenants


@pytest.fixture(scope="session")
def url(tmp_path_factory) -> str:
    """A fast embedded server on a real socket."""
    with served(tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.fixture(scope="session")
def host_and_port(url) -> str:
    return url.removeprefix("http://")


@pytest.fixture(scope="session")
def finished(url, tmp_path_factory):
    """(the folder of a finished run of two tenants, what the command printed). Read only: see ``a_run``."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "two.yaml").write_text(two_tenants(url))
    done = invoke("run", "two.yaml", "--output-dir", "results", "--quiet", cwd=folder)
    return folder / "results", done


@pytest.fixture
def a_run(finished, tmp_path):
    """A copy of the finished run's folder, to do anything with."""
    return shutil.copytree(finished[0], tmp_path / "run")
