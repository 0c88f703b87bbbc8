"""The two thin shells around the dispatcher: asyncio (live) and simpy (simulated)."""
