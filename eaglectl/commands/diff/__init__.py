"""`eaglectl diff`."""
