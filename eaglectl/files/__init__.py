"""Checkpoints as files: opening them on disk or on the Hub, reading headers, writing a new folder."""
