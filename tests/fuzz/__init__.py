"""The parsers of foreign bytes under fuzzing: `make fuzz`, and as tests on the inputs kept here.

It is among the tests because every input that is kept, and every one that was once a finding, is a test case
(test_parsers.py), and because its seeds are made by the tests' own builders.
"""
