"""The live run: a source's requests, at their deadlines, through the scheduler's asyncio driver onto real backends."""
