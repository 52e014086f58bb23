"""Run by test_vllm: the real pair in vLLM at a temperature, as smoke asks for it.

Arguments: a request of eaglectl.run.vllm.child in a file, and the answer's path. Drafts are greedy at
any temperature, as the reference drafts, and the temperature that CPU builds lose is kept.
"""

import json
import sys
from pathlib import Path

from tests.engine import parity_child  # isort: skip

import torch
from vllm.v1.sample import rejection_sampler

from eaglectl.run.vllm import child


def expand(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """What vLLM's expand_batch_to_tokens says that it returns, without its kernel."""
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1)).long()
    values = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return values.repeat_interleave(counts, output_size=num_tokens)


def main() -> None:
    """Answer the request."""
    rejection_sampler.expand_batch_to_tokens = expand
    child.sampled_drafting = lambda: None
    child._check_device = lambda request: None
    parity_child.torch.set_num_threads(1)
    request = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps(child.generate(request)))


if __name__ == "__main__":
    main()
