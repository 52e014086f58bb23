"""What vLLM's counters say of each prompt, with a stand-in of the package `vllm`: they count on from one to
the next.
"""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from eaglectl.run.vllm import child

REQUEST = {
    "target": "target",
    "drafter": "drafter",
    "mode": "generate",
    "prompts": [[5, 6], [8]],
    "k": 2,
    "max_tokens": 9,
    "context": None,
    "temperature": 0.0,
    "seed": 0,
    "ignore_eos": False,
    "stop": [],
    "device": "cpu",
    "is_mla": False,
    "is_mla_target": False,
}


class LLM:
    """Two drafts for each token of a prompt: all have their first token accepted, and one its second too."""

    def __init__(self, **_: Any) -> None:
        self.drafts, self.accepted = 0, [0, 0]
        config = SimpleNamespace(
            device_config=SimpleNamespace(device_type="cpu"),
            model_config=SimpleNamespace(dtype="torch.float32"),
        )
        self.llm_engine = SimpleNamespace(vllm_config=config)

    def generate(self, prompts: list[dict[str, list[int]]], params: object, use_tqdm: bool) -> list[object]:
        ids = prompts[0]["prompt_token_ids"]
        self.drafts += 2 * len(ids)
        self.accepted = [self.accepted[0] + 2 * len(ids), self.accepted[1] + 1]
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=(ids[0], 7))])]

    def get_metrics(self) -> list[object]:
        return [
            SimpleNamespace(name="vllm:spec_decode_num_drafts", value=self.drafts),
            SimpleNamespace(name="vllm:spec_decode_num_accepted_tokens_per_pos", values=self.accepted),
        ]

    def collective_rpc(self, _: object) -> list[dict[str, str]]:
        return [{"class": "Eagle3LlamaForCausalLM"}]


@pytest.fixture(autouse=True)
def _vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("vllm")
    module.LLM, module.SamplingParams = LLM, dict
    monkeypatch.setitem(sys.modules, "vllm", module)
    platforms: Any = ModuleType("vllm.platforms")
    platforms.current_platform = SimpleNamespace(is_cpu=lambda: True)
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)


def test_a_prompt_has_the_counts_since_the_one_before_it() -> None:
    found = child.generate(REQUEST)
    assert found["results"] == [
        {"tokens": [5, 7], "drafts": 4, "accepted": [4, 1]},
        {"tokens": [8, 7], "drafts": 2, "accepted": [2, 1]},
    ]


def test_without_a_drafter_nothing_is_counted() -> None:
    found = child.generate(REQUEST | {"mode": "plain"})
    assert found["results"] == [
        {"tokens": [5, 7], "drafts": 0, "accepted": [0, 0]},
        {"tokens": [8, 7], "drafts": 0, "accepted": [0, 0]},
    ]
    assert found["resolved"] == {}
