"""Lines of eaglectl in a log of vLLM."""

import re

# how vLLM writes what modules of in_engine log; Python writes the text alone before vLLM's logging is set up
LINE = re.compile(
    r"(?:(INFO|WARNING|ERROR) [\d-]+ [\d:]+ \[(?:look|hooks|updates)\.py:\d+\] |^(?=eaglectl ))(.*)", re.M
)
