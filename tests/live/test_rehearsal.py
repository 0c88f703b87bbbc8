"""The rehearsal leaves nothing behind, in the folder of temporary files or in the configuration it was given."""

from __future__ import annotations

from loadgen.live.rehearsal import rehearse
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.slots import Slots
from tenants.tenant import Tenant


async def test_a_rehearsal_ends_by_itself_and_leaves_nothing(tmp_path, monkeypatch):
    """Under several policies."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for policy in ("fifo", "wfq", "vtc", "slo_aware", "committed"):
        config = DispatcherConfig(
            tenants=(Tenant(name="a"), Tenant(name="b")), policy=policy, backends={"x": Slots(sequences=4)}
        )
        await rehearse(config)
    assert list(tmp_path.iterdir()) == []
