"""The types of JSON documents, of which their schemas are made."""
