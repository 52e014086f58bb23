"""The target model in transformers: logits, and the hidden states at aux boundaries."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn

from eaglectl.drafter.drafter import Rope
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError
from eaglectl.files.checkpoint import read_weight_file
from eaglectl.files.target_files import check_files, check_kernels, code_needed
from eaglectl.formats.switches import target_rope
from eaglectl.progress import LOADING, ByteCounter, OnProgress

LAYER_LISTS = ("layers", "h", "blocks", "block")
KEPT_LINES = 2  # of an error message; the second often names the fault
LOGITS = 1 << 24  # logits that are computed at once where only the most likely tokens are asked for
PASS = 2048  # tokens in one forward pass without a cache
FINAL_NORMS = ("norm", "final_layernorm", "ln_f", "final_layer_norm", "norm_f", "embedding_norm")


class TargetModel:
    """A causal language model whose residual stream is recorded at `boundaries` on every forward pass.

    Its KV cache may hold rejected draft tokens, which later passes mask. Logits are computed at the positions
    that are asked for and nowhere else: the input of the lm_head is cut before it.
    """

    boundaries: tuple[int, ...]
    recorded: dict[int, torch.Tensor]

    def __init__(self, model: Any, boundaries: Sequence[int]) -> None:
        self.model = model
        self.layers, self.norm = decoder_parts(model)
        self.depth = len(self.layers)
        self.cache: Any = None
        self.hooks: list[Any] = []
        self._kept = slice(None)  # positions of which the lm_head makes logits
        self._head_input: torch.Tensor | None = None
        self.record(boundaries)

    def record(self, boundaries: Sequence[int]) -> None:
        """Record these boundaries from now on. Raises RefusedError for one past the target's depth."""
        for former in self.hooks:
            former.remove()
        self.boundaries, self.recorded, self.hooks = tuple(boundaries), {}, []
        for boundary in self.boundaries:
            if boundary > self.depth:
                raise RefusedError(f"boundary {boundary} is past the target's {self.depth} layers")
            module = self.norm if boundary == self.depth else self.layers[boundary]
            hook = partial(self._record, boundary)
            self.hooks.append(module.register_forward_pre_hook(hook, with_kwargs=True))

    @property
    def context_length(self) -> int | None:
        """max_position_embeddings of the model's config, where it has that key."""
        length: int | None = getattr(self.model.config, "max_position_embeddings", None)
        return length

    @property
    def embedding(self) -> torch.Tensor:
        """The input embedding [vocab, hidden], for drafters that share it."""
        return _weight(self.model, self.model.get_input_embeddings(), "input embedding")

    @property
    def head(self) -> torch.Tensor:
        """The lm_head [vocab, hidden], for drafters that share it."""
        return _weight(self.model, self.model.get_output_embeddings(), "lm_head")

    def reset(self) -> None:
        """Start with an empty KV cache."""
        from transformers import DynamicCache

        self.cache = DynamicCache()

    def keep_sequences(self, rows: torch.Tensor) -> None:
        """Leave the KV cache these sequences of the batch alone."""
        self.cache.batch_select_indices(rows)

    def keep_slots(self, slots: torch.Tensor) -> None:
        """Leave the KV cache these slots [batch, kept] of each sequence alone, in this order."""
        for layer in self.cache.layers:
            if layer.get_seq_length():
                index = slots[:, None, :, None].to(layer.keys.device)
                layer.keys = layer.keys.take_along_dim(index, 2)
                layer.values = layer.values.take_along_dim(index, 2)

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, valid: torch.Tensor, last: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [batch, last, vocab] and aux states [batch, time, aux*hidden] of `tokens` [batch, time].

        `last` is the number of positions with logits, None for all. `valid` [batch, cached + time] is true
        for the cache slots that hold tokens of the sequence, the new ones included; padding and rejected
        draft tokens are not. Raises UnreadableError where it fails.
        """
        self._kept = slice(None) if last is None else slice(-last, None)
        # transformers 5.24 renamed it; models with code of their own keep the old name
        name = "cache" if "cache" in signature(self.model.forward).parameters else "past_key_values"
        output = self._run(tokens, positions, valid, use_cache=True, **{name: self.cache})
        states = self._take_states(tokens.device)
        # a head that is no module of its own was not cut
        return output.logits[:, self._kept], torch.cat([states[boundary] for boundary in self.boundaries], -1)

    def states(
        self, tokens: torch.Tensor, positions: torch.Tensor, valid: torch.Tensor
    ) -> dict[int, torch.Tensor]:
        """States [batch, time, hidden] by boundary of whole texts, without KV cache and logits."""
        self._kept = slice(-1, None)
        parts = []
        for rows in _parts(tokens):
            self._run(tokens[rows], positions[rows], valid[rows], use_cache=False)
            parts.append(self._take_states(tokens.device))
        return self._joined(parts)

    def states_and_choices(
        self, tokens: torch.Tensor, positions: torch.Tensor, valid: torch.Tensor
    ) -> tuple[dict[int, torch.Tensor], torch.Tensor]:
        """States as `states` returns them, and the most likely token after each position [batch, time].

        What a model does to its logits after the lm_head (a scale, a cap) keeps their order.
        """
        self._kept = slice(-1, None)
        parts, choices = [], []
        for rows in _parts(tokens):
            output = self._run(tokens[rows], positions[rows], valid[rows], use_cache=False)
            inputs = self._head_input
            parts.append(self._take_states(tokens.device))
            choices.append(output.logits.argmax(-1) if inputs is None else self._choices(inputs))
        return self._joined(parts), torch.cat(choices).to(tokens.device)

    def _choices(self, inputs: torch.Tensor) -> torch.Tensor:
        """The most likely token [batch, time] by the lm_head's `inputs` [batch, time, hidden]."""
        head = self.model.get_output_embeddings()
        rows = inputs.flatten(0, 1).split(max(1, LOGITS // len(self.head)))
        return torch.cat([head(part[None])[0].argmax(-1) for part in rows]).view(inputs.shape[:2])

    def _joined(self, parts: Sequence[Mapping[int, torch.Tensor]]) -> dict[int, torch.Tensor]:
        """The states of all parts of a batch."""
        return {boundary: torch.cat([part[boundary] for part in parts]) for boundary in self.boundaries}

    def _run(self, tokens: torch.Tensor, positions: torch.Tensor, valid: torch.Tensor, **caching: Any) -> Any:
        head = self.model.get_output_embeddings()
        # for this pass alone: the model may be run by others, with logits at every position
        hook = head.register_forward_pre_hook(self._cut) if isinstance(head, nn.Module) else None
        try:
            return self.model(
                input_ids=tokens, position_ids=positions, attention_mask=valid.long(), **caching
            )
        except Exception as error:  # of foreign code, by a config that fits no weights
            raise UnreadableError(
                f"the target ({type(self.model).__name__}) does not run in transformers: {first_lines(error)}"
            ) from None
        finally:
            if hook is not None:
                hook.remove()

    def _take_states(self, device: torch.device) -> dict[int, torch.Tensor]:
        """What was recorded, which is kept no longer here."""
        states = {boundary: self.recorded[boundary].to(device) for boundary in self.boundaries}
        self.recorded.clear()
        self._head_input = None
        return states

    def _cut(self, head: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Leave the lm_head the positions of `_kept`."""
        if not arguments:
            return None
        self._head_input = arguments[0]
        return (arguments[0][:, self._kept], *arguments[1:])

    def _record(
        self, boundary: int, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        self.recorded[boundary] = arguments[0] if arguments else named["hidden_states"]


def _parts(tokens: torch.Tensor) -> list[slice]:
    """The rows of a batch [batch, time] that one pass without a cache takes."""
    count = max(1, PASS // tokens.shape[1])
    return [slice(start, start + count) for start in range(0, len(tokens), count)]


def load_target(
    path: Path,
    boundaries: Sequence[int],
    *,
    dtype: str,
    device: str,
    trust_remote_code: bool = False,
    on_progress: OnProgress | None = None,
) -> TargetModel:
    """The target at `path` in `dtype` on `device` ("cpu", "cuda", or "auto" for all GPUs).

    `trust_remote_code` runs Python files in its folder. `on_progress` is called with the bytes of the weight
    files that are in the model. Raises UnreadableError where transformers cannot load it, or not without
    them.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    check_files(path)
    placements: dict[str, Any] = {"auto": "auto", "cpu": None}
    if not trust_remote_code:
        check_kernels(path)
    failure = f"the target {path.name} cannot be loaded by transformers"
    with _loading(path, failure), _counted(path, on_progress):
        model, loading = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=getattr(torch, dtype),
            device_map=placements.get(device, {"": device}),
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
        )
    # transformers fills these with noise, and warns only
    if missing := sorted(loading["missing_keys"]):
        raise UnreadableError(
            f"the target {path.name} lacks {len(missing)} of its weights, like {missing[0]}; take all of its"
            " files"
        )
    return TargetModel(model.eval(), boundaries)


@contextmanager
def _counted(path: Path, on_progress: OnProgress | None) -> Iterator[None]:
    """Report the bytes that transformers takes out of the weight files, in the place of its own bar.

    Nothing is reported of pickles, and by a transformers without this hook (before 5).
    """
    from transformers.utils import logging

    set_hook = getattr(logging, "set_tqdm_hook", None)
    sizes = _stored_bytes(path) if on_progress and set_hook else {}
    if not sizes or set_hook is None:
        yield
        return
    counter = ByteCounter(on_progress, LOADING, sum(sizes.values()))

    def hook(factory: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if named.get("desc") != "Loading weights":
            return factory(*arguments, **named)
        return _counted_weights(arguments[0], counter, sizes)

    previous = set_hook(hook)
    try:
        yield
    finally:
        set_hook(previous)


def _counted_weights(
    weights: Iterable[tuple[str, Any]], counter: ByteCounter, sizes: Mapping[str, int]
) -> Iterator[tuple[str, Any]]:
    """The weights, whose bytes are counted by the names of the stored tensors that each is made of."""
    counter.add(0)
    for name, weight in weights:
        stored = {source for sources in weight.layer_targets.values() for source in sources}
        yield name, weight
        counter.add(sum(sizes.get(source, 0) for source in stored))
    counter.add(counter.total)


def _stored_bytes(path: Path) -> Mapping[str, int]:
    """The bytes of each tensor in the folder's safetensors files; nothing where one cannot be read."""
    try:
        return {
            name: tensor.nbytes
            for file in path.glob("*.safetensors")
            for name, tensor in read_weight_file(file).tensors.items()
        }
    except EaglectlError:  # transformers says what is wrong
        return {}


TOKENIZER_FILES = ("tokenizer", "vocab", "merges", "spiece", "sentencepiece", "tekken")


def load_tokenizer(path: Path, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer in the target's folder. Raises UnreadableError, as `load_target` does."""
    from transformers import AutoTokenizer

    check_files(path)
    failure = f"the target {path.name} has no tokenizer that transformers loads"
    has_files = any(entry.name.startswith(TOKENIZER_FILES) for entry in path.iterdir())
    if not has_files:  # transformers may know other names
        failure = (
            f"the target {path.name} has no tokenizer; put its tokenizer.json and tokenizer_config.json"
            " beside its weights"
        )
    with _loading(path, failure, says_why=has_files):
        return AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)


@contextmanager
def _loading(path: Path, failure: str, *, says_why: bool = True) -> Iterator[None]:
    """Load foreign files by transformers, without its warnings: reports of many lines.

    Raises UnreadableError with `failure` where that fails, and why, or asks for leave to run the target's own
    code.
    """
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    except Exception as error:  # a loader of foreign files fails in any way
        if needs_code(error):
            raise code_needed(path) from None
        raise UnreadableError(f"{failure}: {first_lines(error)}" if says_why else failure) from None
    finally:
        logging.set_verbosity(verbosity)


def needs_code(error: Exception) -> bool:
    """Whether transformers asks for leave to run a target's own code; it raises a plain ValueError."""
    return "trust_remote_code" in str(error)


def first_lines(error: Exception) -> str:
    """The class and the first lines of an exception, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:KEPT_LINES])[:300]}" if lines else type(error).__name__


def choose_device(device: str) -> tuple[str, str]:
    """Device and dtype for --device "auto", "cuda" or "cpu": bfloat16 on GPUs, float32 on CPUs.

    The device is "auto" for a target that is spread over several GPUs. Raises UnreadableError without a GPU
    for "cuda".
    """
    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not has_gpu:
        raise UnreadableError(
            "--device cuda: torch finds no GPU on this machine; use --device cpu, or run where there is one"
        )
    if device == "cpu" or not has_gpu:
        return "cpu", "float32"
    return ("auto" if torch.cuda.device_count() > 1 else "cuda"), "bfloat16"


def rope_of(target: TargetModel) -> Rope | None:
    """The rope of the target's text model; None where its config states none of one kind."""
    config = target.model.config
    text = getattr(config, "get_text_config", lambda: config)()
    return target_rope(text.to_dict())


def drafter_device(device: str) -> str:
    """The one device for a drafter whose target is on `device`."""
    return "cuda" if device == "auto" else device


def version_text() -> str:
    """Versions of torch and transformers in one line."""
    return ", ".join(f"{name} {version}" for name, version in package_versions().items())


def package_versions() -> dict[str, str]:
    """Versions of torch and transformers, by package."""
    import transformers

    return {"torch": torch.__version__, "transformers": transformers.__version__}


def decoder_parts(model: Any) -> tuple[nn.ModuleList, nn.Module]:
    """The decoder layers and the final norm of a transformers model.

    Raises UnreadableError where no module has both.
    """
    text_config = getattr(model.config, "get_text_config", lambda: model.config)()
    depth = text_config.num_hidden_layers
    for module in model.modules():
        lists = _children(module, LAYER_LISTS, nn.ModuleList)
        layers = next((layers for layers in lists if len(layers) == depth), None)
        if layers is None:
            continue
        norm = next(_children(module, FINAL_NORMS, nn.Module), None)
        if norm is not None:
            return layers, norm
    raise UnreadableError(
        f"the target is a {type(model).__name__}, in which {depth} decoder layers and a final norm were not"
        " found; give the language model that the drafter drafts for"
    )


def _weight(model: Any, module: Any, name: str) -> torch.Tensor:
    """The weight of one of the model's modules. Raises UnreadableError where it has none."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor):
        raise UnreadableError(
            f"the target ({type(model).__name__}) has no {name}, which this drafter shares; give the language"
            " model that the drafter drafts for"
        )
    return weight


def _children(module: nn.Module, names: Sequence[str], kind: type) -> Iterator[Any]:
    """The attributes of these names that are of this class, in order."""
    return (child for name in names if isinstance(child := getattr(module, name, None), kind))
