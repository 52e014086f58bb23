"""How SGLang is started on a CPU by the commands of eaglectl."""

from pathlib import Path

from tests.conftest import FIXTURES

# what SGLang cannot choose on a CPU without its compiled functions
ARGUMENTS = {
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "page_size": 1,
    "disable_overlap_schedule": True,
    "mem_fraction_static": 0.3,
}
PATIENCE = 900.0
# the stand-ins in every process of SGLang, by sitecustomize; eaglectl itself does not know them
HOOKED = {
    "PYTHONPATH": f"{Path(__file__).parent / 'hook'}:{FIXTURES.parent}",
    "PYTHONWARNINGS": "ignore",
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
}
