"""Results as JSON documents, each with a schema in schemas/."""
