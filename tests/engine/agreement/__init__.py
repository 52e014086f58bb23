"""Agreement of `validate` with the real vLLM: changed drafters, what it did with each, and the judging."""
