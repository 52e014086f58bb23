"""What engines capture of tiny targets of many architectures (README.md)."""
