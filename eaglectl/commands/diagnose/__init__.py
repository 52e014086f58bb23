"""`eaglectl diagnose`."""
