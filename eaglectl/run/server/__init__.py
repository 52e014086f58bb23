"""A running server as an engine."""
