"""`eaglectl calibrate`."""
