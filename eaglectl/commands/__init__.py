"""The commands, a folder each: options, run, report and document. Each imports no other."""
