"""`eaglectl validate`."""
