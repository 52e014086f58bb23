"""Agreement of `eaglectl validate` with the real vLLM: mutated drafters, what the engine did with each, and
the judging of both.
"""
