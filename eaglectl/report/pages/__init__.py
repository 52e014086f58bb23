"""The HTML pages of `--page`: each command's result as one self-contained file."""
