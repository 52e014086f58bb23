"""What people and pipelines are shown."""
