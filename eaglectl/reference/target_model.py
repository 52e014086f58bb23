"""The target model in transformers: logits, and the hidden states at aux boundaries."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn

from eaglectl.drafter.drafter import Rope
from eaglectl.errors import RefusedError, UnreadableError, error_text
from eaglectl.formats.rope import target_rope
from eaglectl.progress import LOADING, OnProgress, report_step
from eaglectl.target.files import check_files, check_kernels, code_needed

LAYER_LISTS = ("layers", "h", "blocks", "block")
LOGITS = 1 << 24  # logits that are computed at once where only the most likely tokens are asked for
PASS = 2048  # tokens in one forward pass without a cache
NORMS = ("norm", "final_layernorm", "ln_f", "final_layer_norm", "norm_f", "embedding_norm")


class TargetModel:
    """A causal language model whose residual stream is recorded at `boundaries` on every forward pass.

    Its KV cache may hold rejected draft tokens, which later passes mask. Logits are computed at the positions
    that are asked for and nowhere else: the input of the lm_head is cut before it.
    """

    def __init__(self, model: Any, boundaries: Sequence[int]) -> None:
        self.model = model.requires_grad_(False)  # no pass records gradients
        self.layers, self.norm = decoder_parts(model)
        self.depth = len(self.layers)
        self.cache: Any = None
        self.hooks: list[Any] = []
        self.record(boundaries)

    def record(self, boundaries: Sequence[int]) -> None:
        """Record these boundaries from now on. Raises RefusedError for one past the target's depth."""
        for former in self.hooks:
            former.remove()
        self.boundaries, self.hooks = tuple(boundaries), []
        self.recorded: dict[int, torch.Tensor] = {}
        for boundary in self.boundaries:
            if boundary > self.depth:
                raise RefusedError(f"boundary {boundary} is past the target's {self.depth} layers")
            module = self.norm if boundary == self.depth else self.layers[boundary]
            self.hooks.append(
                module.register_forward_pre_hook(partial(self._record, boundary), with_kwargs=True)
            )

    def _record(
        self, boundary: int, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        self.recorded[boundary] = arguments[0] if arguments else named["hidden_states"]

    @property
    def embedding(self) -> torch.Tensor:
        """The input embedding [vocab, hidden], for drafters that share it."""
        return self._weight(self.model.get_input_embeddings(), "input embedding")

    @property
    def head(self) -> torch.Tensor:
        """The lm_head [vocab, hidden], for drafters that share it."""
        return self._weight(self.model.get_output_embeddings(), "lm_head")

    def _weight(self, module: Any, name: str) -> torch.Tensor:
        weight = getattr(module, "weight", None)
        if not isinstance(weight, torch.Tensor):
            raise UnreadableError(
                f"the target ({type(self.model).__name__}) has no {name}, which this drafter shares; pass the"
                " language model that the drafter was trained for"
            )
        return weight

    def reset(self) -> None:
        """Start with an empty KV cache."""
        from transformers import DynamicCache

        self.cache = DynamicCache()

    def keep_slots(self, slots: torch.Tensor) -> None:
        """Keep only these slots [batch, kept] of each sequence in the KV cache, in this order."""
        for layer in self.cache.layers:
            if layer.get_seq_length():
                index = slots[:, None, :, None].to(layer.keys.device)
                layer.keys = layer.keys.take_along_dim(index, 2)
                layer.values = layer.values.take_along_dim(index, 2)

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, valid: torch.Tensor, last: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute logits [batch, last, vocab] and aux states [batch, time, aux*hidden] for `tokens`.

        `tokens` and `positions` are [batch, time]. `last` is the number of positions with logits, None for
        all. `valid` [batch, cached + time] is true for cache slots with tokens of the sequence, the new ones
        included; padding and rejected draft tokens are not. Raises UnreadableError if it fails.
        """
        span = slice(None) if last is None else slice(-last, None)
        # transformers 5.24 renamed it; models with code of their own keep the old name
        name = "cache" if "cache" in signature(self.model.forward).parameters else "past_key_values"
        logits, states, _ = self._run(tokens, positions, valid, span, use_cache=True, **{name: self.cache})
        # a head that is no module of its own was not cut
        return logits[:, span], torch.cat([states[boundary] for boundary in self.boundaries], -1)

    def states(
        self, tokens: torch.Tensor, positions: torch.Tensor, valid: torch.Tensor
    ) -> dict[int, torch.Tensor]:
        """Compute states [batch, time, hidden] by boundary of whole texts, without KV cache and logits."""
        return self.states_and_choices(tokens, positions, valid, with_choices=False)[0]

    def states_and_choices(
        self, tokens: torch.Tensor, positions: torch.Tensor, valid: torch.Tensor, *, with_choices: bool = True
    ) -> tuple[dict[int, torch.Tensor], torch.Tensor]:
        """Compute states as `states` does, and the most likely token after each position [batch, time].

        What a model does to its logits after the lm_head (a scale, a cap) keeps their order.
        """
        parts, choices = [], [tokens[:0]]
        count = max(1, PASS // tokens.shape[1])  # rows of one pass
        for ids, places, is_text in zip(*(v.split(count) for v in (tokens, positions, valid)), strict=True):
            logits, states, inputs = self._run(ids, places, is_text, slice(-1, None), use_cache=False)
            parts.append(states)
            if with_choices:
                chosen = logits.argmax(-1) if inputs is None else self._choices(inputs)
                choices.append(chosen.to(tokens.device))
        return {
            boundary: torch.cat([part[boundary] for part in parts]) for boundary in self.boundaries
        }, torch.cat(choices)

    def _choices(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the most likely token [batch, time] by the lm_head's `inputs` [batch, time, hidden]."""
        head = self.model.get_output_embeddings()
        rows = inputs.flatten(0, 1).split(max(1, LOGITS // len(self.head)))
        return torch.cat([head(part[None])[0].argmax(-1) for part in rows]).view(inputs.shape[:2])

    def _run(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        valid: torch.Tensor,
        span: slice,
        **caching: Any,
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor], torch.Tensor | None]:
        """Run the model; return logits, recorded states by boundary, and the whole lm_head's input.

        The logits are of the positions `span` alone.
        """
        head, head_inputs = self.model.get_output_embeddings(), list[torch.Tensor]()

        def cut(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
            head_inputs.extend(arguments[:1])
            return (arguments[0][:, span], *arguments[1:]) if arguments else None

        # for this pass alone: the model may be run by others, with logits at every position
        hook = head.register_forward_pre_hook(cut) if isinstance(head, nn.Module) else None
        try:
            output = self.model(
                input_ids=tokens, position_ids=positions, attention_mask=valid.long(), **caching
            )
        except Exception as error:  # of foreign code, by a config that fits no weights
            raise UnreadableError(
                f"the target ({type(self.model).__name__}) does not run in transformers: {error_text(error)}"
            ) from None
        finally:
            if hook is not None:
                hook.remove()
        states = {boundary: self.recorded[boundary].to(tokens.device) for boundary in self.boundaries}
        self.recorded.clear()
        return output.logits, states, head_inputs[0] if head_inputs else None


def load_target(
    path: Path,
    boundaries: Sequence[int],
    *,
    dtype: str,
    device: str,
    trust_remote_code: bool = False,
    on_progress: OnProgress | None = None,
) -> TargetModel:
    """Load the target at `path` in `dtype` on `device` ("cpu", "cuda", or "auto" for all GPUs).

    `trust_remote_code` runs Python files in its folder. `on_progress` is called when loading starts. Raises
    UnreadableError if transformers cannot load it, or not without those files.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    check_files(path)
    if not trust_remote_code:
        check_kernels(path)
    report_step(on_progress, LOADING)
    with _loading(path, f"the target {path.name} cannot be loaded by transformers"):
        model, loading = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=getattr(torch, dtype),
            device_map={"auto": "auto", "cpu": None}.get(device, {"": device}),
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
        )
    # transformers fills these with noise, and warns only
    if missing := sorted(loading["missing_keys"]):
        raise UnreadableError(
            f"the target {path.name} lacks {len(missing)} of its weights, like {missing[0]}; download all of"
            " its files"
        )
    return TargetModel(model.eval(), boundaries)


def load_tokenizer(path: Path, *, trust_remote_code: bool = False) -> Any:
    """Load the tokenizer in the target's folder. Raises UnreadableError, as `load_target` does."""
    from transformers import AutoTokenizer

    check_files(path)
    failure = (
        f"the target {path.name} has no tokenizer that transformers can load; put its tokenizer.json and"
        " tokenizer_config.json beside its weights"
    )
    with _loading(path, failure):
        return AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)


@contextmanager
def _loading(path: Path, failure: str) -> Iterator[None]:
    """Load untrusted files with transformers, without its long warnings.

    Raises UnreadableError with `failure` and the reason if loading fails, or with a request for
    --trust-remote-code if the target needs its own code.
    """
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    except Exception as error:  # a loader of foreign files fails in any way
        if "trust_remote_code" in str(error):  # a plain ValueError
            raise code_needed(path) from None
        raise UnreadableError(f"{failure}: {error_text(error)}") from None
    finally:
        logging.set_verbosity(verbosity)


def choose_device(device: str) -> tuple[str, str]:
    """Return device and dtype for --device "auto", "cuda" or "cpu": bfloat16 on GPUs, float32 on CPUs.

    The device is "auto" for a target that is spread over several GPUs. Raises UnreadableError without a GPU
    for "cuda".
    """
    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not has_gpu:
        raise UnreadableError(
            "--device cuda: torch finds no GPU on this machine; use --device cpu, or run where there is one",
            options=("--device",),
        )
    if device == "cpu" or not has_gpu:
        return "cpu", "float32"
    return ("auto" if torch.cuda.device_count() > 1 else "cuda"), "bfloat16"


def rope_of(target: TargetModel) -> Rope | None:
    """Return the rope of the target's text model; None if its config states no base, or several."""
    config = target.model.config
    return target_rope(getattr(config, "get_text_config", lambda: config)().to_dict())


def version_text() -> str:
    """Return the versions of torch and transformers in one line."""
    return ", ".join(f"{name} {version}" for name, version in package_versions().items())


def package_versions() -> dict[str, str]:
    """Return the versions of torch and transformers, by package."""
    import transformers

    return {"torch": torch.__version__, "transformers": transformers.__version__}


def decoder_parts(model: Any) -> tuple[nn.ModuleList, nn.Module]:
    """Return the decoder layers and the final norm of a transformers model.

    Raises UnreadableError if no module has both.
    """
    depth = getattr(model.config, "get_text_config", lambda: model.config)().num_hidden_layers
    for module in model.modules():
        lists, norms = ([getattr(module, name, None) for name in names] for names in (LAYER_LISTS, NORMS))
        layers = [part for part in lists if isinstance(part, nn.ModuleList) and len(part) == depth]
        norms = [part for part in norms if isinstance(part, nn.Module)]
        if layers and norms:
            return layers[0], norms[0]
    raise UnreadableError(
        f"the target is a {type(model).__name__} without a list of {depth} decoder layers and a final norm;"
        " pass the language model that the drafter was trained for"
    )
