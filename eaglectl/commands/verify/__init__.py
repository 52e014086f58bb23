"""`eaglectl verify`."""
