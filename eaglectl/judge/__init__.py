"""Validating a checkpoint by rules. A rule that cannot look never counts as passed."""
