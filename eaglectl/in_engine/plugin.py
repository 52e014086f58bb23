"""Entry points of the plugin groups of vLLM and SGLang. Standard library only, until there is a drafter."""

from eaglectl.in_engine import sglang, vllm
from eaglectl.in_engine.hooks import register


def register_vllm() -> None:
    """Register the hooks on what vLLM calls at its start: the entry point in `vllm.general_plugins`."""
    register(vllm.ENGINE, vllm.HOOKS)


def register_sglang() -> None:
    """Register the hooks on what SGLang calls at its start: the entry point in `sglang.srt.plugins`."""
    register(sglang.ENGINE, sglang.HOOKS)
