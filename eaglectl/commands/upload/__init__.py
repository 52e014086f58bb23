"""`eaglectl upload`."""
