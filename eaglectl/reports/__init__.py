"""Results as text, by medium: terminal, JSON documents, HTML pages, and formats for CI."""
