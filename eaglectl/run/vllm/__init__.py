"""The installed vLLM as an engine."""
