from dataclasses import dataclass
from types import SimpleNamespace


@dataclass
class EngineArgs:
    block_size: int = 1
    model: str = ""

    def __init__(self, **given):
        self.given = given

    def create_engine_config(self):
        draft = SimpleNamespace(
            attention_backend=self.given["speculative_config"].get("attention_backend"),
            draft_load_config=None,
            draft_model_config="draft model",
        )
        attention = {"backend": None}
        return {"attention_config": attention, "load_config": "of the target", "speculative_config": draft}
