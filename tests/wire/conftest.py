from __future__ import annotations

import asyncio
import subprocess

import pytest
import uvloop
from scripted_server import Bench


def pytest_asyncio_loop_factories(config, item):
    """Every test runs on plain asyncio and on uvloop: both are promised to work."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def bench():
    bench = Bench()
    yield bench
    await bench.close()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A self-signed certificate for localhost: (certificate file, key file)."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost "
        f"-addext subjectAltName=DNS:localhost,IP:127.0.0.1 -days 2 -keyout '{key}' -out '{cert}'",
        shell=True,
        check=True,
        capture_output=True,
    )
    return cert, key
