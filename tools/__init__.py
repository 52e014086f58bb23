"""What maintainers of eaglectl run, and no user: it stands in no wheel (CONTRIBUTING.md, "Tools")."""
