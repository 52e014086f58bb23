"""What the sources of an engine release show that eaglectl's data does not state (CONTRIBUTING.md)."""
