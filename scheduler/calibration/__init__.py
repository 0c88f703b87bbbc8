"""Fits a server model to client-side timestamps alone: no GPU profile, no server log, any trace will do."""
