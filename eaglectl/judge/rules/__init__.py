"""The rules; each module declares those of one subject."""
