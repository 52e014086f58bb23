"""What several commands do: open a source with its target, judge, convert, measure and compare it."""
