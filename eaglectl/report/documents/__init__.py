"""Results as JSON documents: each part is a type, from which its keys and its schema in schemas/ follow."""
