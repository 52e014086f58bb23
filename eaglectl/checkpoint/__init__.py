"""The bytes: where a checkpoint lies, what its headers say, how a new one is written."""
