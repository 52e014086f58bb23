"""`eaglectl convert`."""
