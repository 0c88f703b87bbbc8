"""What a request runs on: the ModelBackend protocol, its registry, the streaming wire client, adapters, the embedded
server. A backend knows neither arrival, queue nor statistics. Never here: scheduling decisions, statistics."""
