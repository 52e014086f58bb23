"""What serving engines read, ignore and refuse."""
