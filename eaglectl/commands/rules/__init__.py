"""`eaglectl rules`."""
