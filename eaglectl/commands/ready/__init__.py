"""`eaglectl ready`."""
