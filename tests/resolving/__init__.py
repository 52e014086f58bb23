"""The aux layers that vLLM's own resolving functions return, release by release, and how they are run.

`answers.json` has, for each release and runner, the layers that an 8-layer target then captures for each
config of `configs.py`. Only Python files of a wheel are needed, and none of its packages:

    python -m tests.resolving.record WHEEL_OR_FOLDER...

takes wheels of vLLM or folders that hold `vllm/` and its `*.dist-info`, cuts the functions out of their
files, runs them on every config, and merges the answers. `tests/test_engines.py` holds the data of
`eaglectl/engines/vllm_releases.json` to every answer.
"""
