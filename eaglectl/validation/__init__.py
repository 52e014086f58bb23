"""Judging a checkpoint by rules; what cannot be looked at is said, and never passes."""
