"""What SGLang's sources show.

Drafter classes and what they read, where ids are looked up, and what they mean to each target's class.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tools.scan.extraction import (
    KEYS,
    Found,
    Part,
    Watched,
    default_count,
    function_of,
    nodes_of,
    raises,
    reads_of,
    source_of,
)
from tools.scan.sources import Sources, called, functions, text_of
from tools.scan.target_classes import UNREAD, Classes, ClassText

MODELS = "srt/models"
CLASSES = {"llama": "llama_eagle3", "mla": "kimi_k25_eagle3"}
CAPTURE = "set_eagle3_layers_to_capture"
# where the ids of aux layers are looked up, and were before 0.5.16
RESOLVER = "srt/model_executor/model_runner_components/spec_aux_hidden_state.py"
RESOLVERS = (RESOLVER, "srt/model_executor/model_runner.py")
CONTEXT = "srt/configs/model_config.py"
WORKER = "srt/speculative/eagle_worker_v2.py"
AUX = ("aux-layers", "aux-unknown", "last-boundary", "ids-empty", "ids-twice", "ids-unsorted")
WATCHED = (
    Watched(f"{MODELS}/llama_eagle3.py", (), ("llama", "qwen3")),
    Watched(f"{MODELS}/kimi_k25_eagle3.py", (), ("mla",)),
    Watched(
        f"{MODELS}/llama.py",
        ("LlamaMLP.__init__", "LlamaMLP.forward", "LlamaAttention"),
        ("hidden-act", "mlp-bias", "biases-unfilled"),
    ),
    Watched(f"{MODELS}/llama.py", ("LlamaModel.forward", f"LlamaForCausalLM.{CAPTURE}"), AUX),
    Watched(
        f"{MODELS}/llama.py",
        ("LlamaForCausalLM.set_embed", "LlamaForCausalLM.set_embed_and_head"),
        ("head-replaced",),
    ),
    Watched(f"{MODELS}/qwen3.py", (f"Qwen3ForCausalLM.{CAPTURE}",), AUX),
    Watched(RESOLVER, ("_resolve_eagle_aux_hidden_state",), AUX),
    Watched(CONTEXT, ("ModelConfig._derive_context_length",), ("positions",)),
    Watched(WORKER, ("EagleDraftWorker.init_lm_head",), ("head-replaced", "d2t-missing")),
)
# of what no file of the engine speaks, the engine knows nothing
WORDS = ("transformer_layer_config", "norm_before_residual", "mask_hidden")
# a loop that keeps a layer's branch, where the residual that belongs to it is a value of its own
BRANCH = ("aux_hidden_states.append(hidden_states)", "hidden_states, residual = layer(")
NO_RESIDUAL = "without the residual"
# what a hook sets: the decoder's list, or a flag of its layers; what the decoder's loop asks for
SETS = (re.compile(r"self\.\w+\.layers_to_capture = "), re.compile(r"'_is_layer_to_capture', True"))
ASKS = (
    re.compile(r"(?:if|and) [\w.]+(?: \+ 1)? in self\.layers_to_capture"),
    re.compile(r"_is_layer_to_capture\", False"),
)
# a loop that has a state after its last layer
LAST = re.compile(
    r"(?:num_layers|\.num_hidden_layers|len\(self\.layers\)|end_layer|i \+ 1) in self\.layers_to_capture"
)
DECODER = re.compile(r"self\.(?:language_)?model(?:: [\w\[\]. |]+)? = (?:self\.)?([\w.]+)\(")
ENTRIES = re.compile(rb"^EntryClass\s*=\s*(\[[^\]]*\]|\w+)", re.MULTILINE)
# how a wrapper builds its language model, and hands layers on to it
INNER = re.compile(r"self\.language_model(?:: [\w\[\]. |]+)? = (\w+)\(")
HANDS_ON = f"self.language_model.{CAPTURE}(layer_ids)"


def _architectures(sources: Sources) -> Found:
    """Names of drafter classes that the registry finds, and their modules."""
    found: dict[str, str] = {}
    for name in CLASSES.values():
        for node in nodes_of(sources.module(f"{MODELS}/{name}.py")):
            match node:
                case ast.Assign(targets=[ast.Name(id="EntryClass")], value=value):
                    found |= {part.id: name for part in ast.walk(value) if isinstance(part, ast.Name)}
    return dict(sorted(found.items()))


def _drafter(sources: Sources, name: str) -> Found | None:
    """One drafter class: what it reads, and what it does with tensors."""
    tree = sources.module(f"{MODELS}/{name}.py")
    if tree is None:
        return None
    loader = "".join(source_of(function) for function in functions(tree, "load_weights"))
    text = source_of(tree)
    return {
        "reads": reads_of(tree, (*KEYS, "bias", "use_aux_norm")),
        "needs": _needs(tree),
        "default_aux_count": default_count(tree) or _returned_count(tree),
        "qkv_bias": _biases(tree).get("qkv_proj"),
        "has_qk_norms": "q_norm" in text or "k_norm" in text,
        "prefixes_model": "f'model.{" in loader,
        "knows_unprefixed_and_prefixed": "in params_dict else f'model.{" in loader,
        "skips_unknown_tensors": "in params_dict:" in loader,
        "keeps_d2t_as_differences": "loaded_weight + torch.arange(" in loader,
        "starts_without_d2t": "self.hot_token_id = None" in text,
        "one_layer_only": _refuses(tree, "num_hidden_layers"),
        "refuses_other_dtypes": _refuses(tree, ".dtype not in"),
        "shares_head_without_size": _shares_head(tree),
        "later_layers_use_input_layernorm": _later_norm(tree),
        "fuses_only_other_widths": "hidden_states.shape[-1] != embeds.shape[-1]" in text,
    }


def _returned_count(tree: ast.AST) -> int | None:
    """The number of aux states of a function that returns it where there are no ids."""
    for node in ast.walk(tree):
        match node:
            case ast.If(
                test=ast.Compare(left=ast.Name(id="layer_ids"), ops=[ast.Is()]),
                body=[ast.Return(value=ast.Constant(value=int(count)))],
            ):
                return count
    return None


def _needs(tree: ast.AST) -> list[str]:
    """Keys that are read as attributes of the config alone, and so have to be there."""
    read, asked = set(), set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=holder, attr=name, ctx=ast.Load()) if source_of(holder).endswith(
                "config"
            ):
                read.add(name)
            case ast.Call(args=[_, key, *_]) if called(node) in ("getattr", "hasattr"):
                asked.add(text_of(key))
    return sorted((read - asked) & set(KEYS))


def _biases(tree: ast.AST | None) -> Mapping[str, bool]:
    """Of each linear layer, self.x or self.y.x, whether it has a bias, where that is written out."""
    found = {}
    for node in nodes_of(tree):
        match node:
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=ast.Call(keywords=keywords)):
                for keyword in keywords:
                    if keyword.arg == "bias" and isinstance(keyword.value, ast.Constant):
                        found[name] = bool(keyword.value.value)
    return found


def _refuses(tree: ast.AST | None, words: str) -> bool:
    """Whether a condition on these words ends in an exception."""
    return any(
        words in source_of(node.test) and any(isinstance(part, ast.Raise) for part in node.body)
        for node in nodes_of(tree)
        if isinstance(node, ast.If)
    )


def _shares_head(tree: ast.AST) -> bool:
    """Whether the target's head is taken where no draft_vocab_size is stated."""
    return any(
        source_of(node.test).endswith("draft_vocab_size is None")
        and "self.load_lm_head_from_target = True" in "\n".join(map(source_of, node.body))
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
    )


def _later_norm(tree: ast.AST) -> bool | None:
    """Whether layers after the first apply input_layernorm; None where layers are not told apart."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and source_of(node.test) == "self.is_input_layer":
            return "input_layernorm" in "\n".join(map(source_of, node.orelse))
    return None


def _aux_ids(sources: Sources) -> Mapping[str, list[str] | None]:
    """The keys that name aux layers, by the one runner there is."""
    for path in RESOLVERS:
        for node in nodes_of(sources.module(path)):
            match node:
                case ast.Assign(
                    targets=[ast.Attribute(attr="eagle_aux_hidden_state_layer_ids")], value=value
                ):
                    if keys := list(_keys(value)):
                        return {"default": keys}
    return {"default": None}


def _keys(value: ast.expr) -> Iterator[str]:
    """The path of eagle_config["key"], and of the like."""
    match value:
        case ast.Subscript(value=ast.Name(id=holder), slice=ast.Constant(value=str(key))):
            yield f"{holder}.{key}"
        case ast.Call(func=ast.Attribute(value=ast.Name(id=holder), attr="get"), args=[key, *_]):
            yield f"{holder}.{text_of(key)}"


def _capture(function: ast.FunctionDef) -> dict[str, Any] | None:
    if not any(argument.arg == "layer_ids" for argument in function.args.args):
        return None
    default = next((part for part in ast.walk(function) if isinstance(part, ast.List) and part.elts), None)
    if default is None:
        return None  # another class's function is called
    text = source_of(function)
    adds_to_default = "layer_ids = [" in text and "if layer_ids is None" in text
    words = ", ".join(map(source_of, default.elts)).replace("num_layers", "n")
    return {
        "adds_one": _meaning(text),
        "default": _plus_one(words) if adds_to_default else f"({words})",
    }


def _meaning(text: str) -> str:
    """Whether ids are outputs of layers, in the words of the data's adds_one; "unknown" for other code."""
    adds, keeps = "[val + 1 for val in layer_ids]" in text, "list(layer_ids)" in text
    if adds and not keeps:
        return "always"
    if adds and "layer_ids[0] == 1" in text:
        return "first id is 1"
    if adds and "max(layer_ids) == num_layers" in text:
        return "no id is n"
    return "unknown"


def _plus_one(words: str) -> str:
    return "(" + ", ".join(f"{word} + 1" for word in words.split(", ")) + ")"


def _targets(sources: Sources) -> Mapping[str, Found]:
    """Whether the class of each registered target captures layers, by which rule, and where it is."""
    classes = Classes(sources, (MODELS,))
    found = {}
    for path, data in sources.modules(MODELS):
        for entry in ENTRIES.findall(data):
            for name in re.findall(r"\w+", re.sub(r"#.*", "", entry.decode(errors="replace"))):
                if text := classes.find(name, path):
                    found[name] = {**_target(classes, text), "source": text.place(MODELS)}
    return dict(sorted(found.items()))


def _target(classes: Classes, text: ClassText) -> Found:
    """The rule by which a class captures layers: its own, an inherited one, or that of its language model."""
    lineage = classes.lineage(text)
    own = next((part for part in lineage if part.has(CAPTURE)), None)
    if own is None:
        return {"captures": False}
    if HANDS_ON in own.body:
        inner = next((match[1] for part in lineage if (match := INNER.search(part.body))), None)
        other = classes.find(inner, own.path) if inner else None
        return {**_target(classes, other), "language_model": inner} if other else {"captures": False}
    return _rule_of(classes, own, lineage)


def _rule_of(classes: Classes, own: ClassText, lineage: Sequence[ClassText]) -> Found:
    """What the function that a class has or inherits does with ids, and which states its decoder keeps."""
    function = _hook(classes, own)
    rule = _capture(function) if function else None
    if rule is None:
        return {"captures": False}
    decoders = _decoders(classes, lineage) or classes.in_file(own.path)
    reader = next((part for part in decoders if any(asked.search(part.body) for asked in ASKS)), None)
    if reader is None or not _is_read(classes, own, decoders, reader):
        return {"captures": False, "state": UNREAD}
    if LAST.search(reader.body):
        rule["last"] = True
    is_branch = any(all(mark in part.body for mark in BRANCH) for part in classes.in_file(own.path))
    return {"captures": True, **rule, **({"state": NO_RESIDUAL} if is_branch else {})}


def _hook(classes: Classes, text: ClassText) -> ast.FunctionDef | None:
    tree = classes.tree(text)
    functions = [node for node in (tree.body if tree else ()) if isinstance(node, ast.FunctionDef)]
    return next((node for node in functions if node.name == CAPTURE), None)


def _decoders(classes: Classes, lineage: Sequence[ClassText]) -> tuple[ClassText, ...]:
    """The class of a target's decoder and all that it inherits from; none where it is not found."""
    bodies = [part.body for part in lineage]
    name = next((match[1] for body in bodies if (match := DECODER.search(body))), "")
    if name and _named(classes, name, lineage[0].path) is None:
        # an argument or attribute that subclasses set, or a function that they override
        given = re.compile(rf"\b{name}(?: = |=)([\w.]+)|def {name}\(.*?return (\w+)\(", re.DOTALL)
        name = next((match[1] or match[2] for body in bodies if (match := given.search(body))), "")
    decoder = _named(classes, name, lineage[0].path)
    return classes.lineage(decoder) if decoder else ()


def _named(classes: Classes, name: str, path: str) -> ClassText | None:
    """A class by its name, or by the name of its module and its own."""
    module, _, last = name.rpartition(".")
    return classes.find(last, f"{MODELS}/{module}.py" if module else path)


def _is_read(classes: Classes, own: ClassText, decoders: Sequence[ClassText], reader: ClassText) -> bool:
    """Whether a decoder's loop asks for what the target's function sets, or has the decoder's set."""
    text = source_of(hook) if (hook := _hook(classes, own)) else ""
    if f".{CAPTURE}(" in text:
        text += "".join(source_of(inner) for part in decoders if (inner := _hook(classes, part)))
    return any(sets.search(text) and asks.search(reader.body) for sets, asks in zip(SETS, ASKS, strict=True))


def _unmentioned(sources: Sources) -> list[str]:
    """Those of WORDS that no file mentions."""
    missing = set(WORDS)
    for _, data in sources.modules("srt"):
        missing -= {word for word in missing if word.encode() in data}
    return sorted(missing)


def _mlp(sources: Sources) -> Found | None:
    """The MLP that the drafter borrows from Llama's class."""
    for node in nodes_of(sources.module(f"{MODELS}/llama.py")):
        if isinstance(node, ast.ClassDef) and node.name == "LlamaMLP":
            return {"biases": dict(_biases(node)), "refuses_other_activations": _refuses(node, "hidden_act")}
    return None


def _refuses_longer(sources: Sources) -> bool | None:
    function = function_of(sources, CONTEXT, "_derive_context_length")
    return None if function is None else raises(function) and "context_length > " in source_of(function)


PARTS: Mapping[str, Part] = {
    "architectures": _architectures,
    "classes": lambda sources: {kind: _drafter(sources, name) for kind, name in CLASSES.items()},
    "aux_ids": _aux_ids,
    "targets": _targets,
    "mlp": _mlp,
    "refuses_longer_targets": _refuses_longer,
    "unmentioned": _unmentioned,
}
