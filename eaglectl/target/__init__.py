"""The target model as it was given or found: where it lies, its configuration and its small files."""
