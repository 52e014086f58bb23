"""Results for people: sections of one shape, and writers for the terminal, pages, Markdown and pictures."""
