"""`eaglectl engines`."""
