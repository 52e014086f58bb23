"""One module per producer: how its files are recognised, read and written."""
