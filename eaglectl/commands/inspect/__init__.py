"""`eaglectl inspect`."""
