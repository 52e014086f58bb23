"""`eaglectl smoke`."""
