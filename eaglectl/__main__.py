"""`python -m eaglectl`."""

from eaglectl.cli import main

main()
