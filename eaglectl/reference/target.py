"""The target through transformers: logits and aux states at boundaries, with a cache that may hold rejected slots."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from eaglectl.errors import Refused, Unreadable

LAYER_LISTS = ("layers", "h", "blocks", "block")
FINAL_NORMS = ("norm", "final_layernorm", "ln_f", "final_layer_norm", "norm_f", "embedding_norm")


class TargetModel:
    """A causal language model whose residual stream is recorded at `boundaries` on every forward pass."""

    boundaries: tuple[int, ...]
    seen: dict[int, torch.Tensor]

    def __init__(self, model: Any, boundaries: Sequence[int]) -> None:
        self.model = model
        self.layers, self.norm = decoder_parts(model)
        self.depth = len(self.layers)
        self.cache: Any = None
        self.hooks: list[Any] = []
        self.watch(boundaries)

    def watch(self, boundaries: Sequence[int]) -> None:
        """Record these boundaries from now on, and no others. Raises Refused for one past the target's depth."""
        for hook in self.hooks:
            hook.remove()
        self.boundaries, self.seen, self.hooks = tuple(boundaries), {}, []
        for boundary in self.boundaries:
            if boundary > self.depth:
                raise Refused(f"boundary {boundary} is past the target's {self.depth} layers")
            module = self.norm if boundary == self.depth else self.layers[boundary]
            self.hooks.append(module.register_forward_pre_hook(self._recorder(boundary), with_kwargs=True))

    @property
    def embedding(self) -> torch.Tensor:
        """[vocab, hidden], for drafters that share it."""
        weight: torch.Tensor = self.model.get_input_embeddings().weight
        return weight

    @property
    def head(self) -> torch.Tensor:
        """[vocab, hidden], for drafters that share it."""
        weight: torch.Tensor = self.model.get_output_embeddings().weight
        return weight

    def start(self) -> None:
        """Forget everything."""
        from transformers import DynamicCache

        self.cache = DynamicCache()

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [batch, time, vocab] and aux states [batch, time, aux*hidden] of `tokens` [batch, time].

        `slots` [batch, cached + time] is true for the cache slots that belong to the sequence, the new ones included.
        """
        found = self.model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=slots.long(),
            past_key_values=self.cache,
            use_cache=True,
        )
        aux = [self.seen[boundary].to(tokens.device) for boundary in self.boundaries]
        return found.logits, torch.cat(aux, -1)

    def _recorder(self, boundary: int) -> Any:
        def record(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            self.seen[boundary] = arguments[0] if arguments else named["hidden_states"]

        return record


def load_target(
    path: Path, boundaries: Sequence[int], *, dtype: str, device: str, trust_remote_code: bool = False
) -> TargetModel:
    """The target at `path` in `dtype` on `device` ("cpu", "cuda", or "auto" for all GPUs). Raises Unreadable."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    placement = "auto" if device == "auto" else {"": device}
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=getattr(torch, dtype),
            device_map=placement if device != "cpu" else None,
            trust_remote_code=trust_remote_code,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise Unreadable(f"the target {path.name} cannot be loaded by transformers: {lines[0][:200]}") from None
    return TargetModel(model.eval(), boundaries)


TOKENIZERS = ("tokenizer", "vocab", "merges", "spiece", "sentencepiece", "tekken")


def tokenizer_of(path: Path) -> Any:
    """The tokenizer in the target's folder. Raises Unreadable."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError) as error:
        if not any(entry.name.startswith(TOKENIZERS) for entry in path.iterdir()):
            raise Unreadable(f"the target {path.name} has no tokenizer; put its tokenizer.json and tokenizer_config.json beside its weights") from None  # fmt: skip
        lines = str(error).splitlines() or [type(error).__name__]
        raise Unreadable(f"the target {path.name} has no tokenizer that transformers loads: {lines[0][:200]}") from None


def choose_device(asked: str) -> tuple[str, str]:
    """Device and dtype for "auto", "cuda" or "cpu": bfloat16 on GPUs, float32 on CPUs. Raises Unreadable without a GPU."""
    has_gpu = torch.cuda.is_available()
    if asked == "cuda" and not has_gpu:
        raise Unreadable(
            "--device cuda: torch finds no GPU on this machine; use --device cpu, or run where there is one"
        )
    if asked == "cpu" or not has_gpu:
        return "cpu", "float32"
    return ("auto" if torch.cuda.device_count() > 1 else "cuda"), "bfloat16"


def versions() -> str:
    """torch and transformers, for reports."""
    return ", ".join(f"{name} {version}" for name, version in package_versions().items())


def package_versions() -> dict[str, str]:
    """Versions of what runs the target here, by package."""
    import transformers

    return {"torch": torch.__version__, "transformers": transformers.__version__}


def decoder_parts(model: Any) -> tuple[nn.ModuleList, nn.Module]:
    """The decoder's layers and its final norm, in any transformers architecture. Raises Refused where they are not found."""
    text = getattr(model.config, "get_text_config", lambda: model.config)()
    depth = text.num_hidden_layers
    for module in model.modules():
        for name in LAYER_LISTS:
            layers = getattr(module, name, None)
            if not isinstance(layers, nn.ModuleList) or len(layers) != depth:
                continue
            norm = next(
                (getattr(module, n) for n in FINAL_NORMS if isinstance(getattr(module, n, None), nn.Module)), None
            )
            if norm is not None:
                return layers, norm
    raise Refused(f"{type(model).__name__}: its {depth} decoder layers and final norm were not found")
