"""The installed SGLang as an engine."""
