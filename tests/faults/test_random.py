"""Fixtures that are changed at random, by the public API: an answer or an EaglectlError, and no leftover.

Most changes are mild (a larger number, keys in another order, other weights), so that many conversions come
to write; the others are anything. EAGLECTL_RANDOM=SEED:NUMBER runs one change again, EAGLECTL_MINUTES longer.
"""

import itertools
import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.errors import EaglectlError
from eaglectl.formats.catalogue import writable
from eaglectl.formats.format import Answers
from tests.builders import contents, framed
from tests.conftest import FIGURES, FIXTURES

SLOWEST = 20.0
TARGETS = (None, str(FIXTURES / "target"))
BIG = 2**63
NUMBERS = (0, -1, 1, 2, 2**31, 2**32, BIG, 10**400, 1.5, -0.0, 1e-320, 1e308, float("inf"), float("nan"))
TEXTS = ("", "x", "\ud800", "\0", "\x1b[31m", "x" * 5000, "nan", "1e9", "../../etc", "float16", "default")
LISTS = ([], [[]], [None], [1, "a"], [0] * 10, [-1, -1, -1], [2**70], [1.0, 2.0, 3.0], [True, False])
OBJECTS = ({}, {"a": 1}, {"": {}}, {"rope_type": "llama3"}, {"rope_type": 5}, {"type": []})
VALUES: tuple[Any, ...] = (*NUMBERS, *TEXTS, *LISTS, *OBJECTS, True, False, None)
# keys that a reader of configs knows, beside those of the fixture
KEYS = [
    "layer_types", "rope_parameters", "rope_scaling", "quantization_config", "eagle_config", "auto_map",
    "text_config", "head_dim", "architectures", "model_type", "draft_vocab_size", "target_layer_ids",
    "torch_dtype", "dtype", "sliding_window", "hidden_act", "partial_rotary_factor",
    "transformer_layer_config", "speculators_config", "num_aux_hidden_states", "fc_norm", "norm_output",
    "eagle_aux_hidden_state_layer_ids", "_name_or_path", "tie_word_embeddings", "kv_lora_rank", "q_lora_rank",
    "vocab_size", "max_position_embeddings", "bos_token_id", "eos_token_id", "dflash_config",
]  # fmt: skip
# tensors' names, dtypes and offsets, in the JSON of a header
ODD = (
    "layers.9.x", "lm_head.weight", "layers.0.mlp.experts.3.w", "layers.99999999999999999999.a", "x" * 70_000,
    "layers.-1.q", "a\nb", "F16", "I64", "F8_E4M3", "F4", "C64", "E8M0", [2**40, 0], [1.0], [1] * 100,
    [0, 0], [0, BIG], [5, 1], [-8, 0], {"format": 5}, {"format": "tf"}, {"a": "\x1b" * 5000},
)  # fmt: skip
Json = dict[str, Any]


@cache
def sources() -> tuple[Path, ...]:
    """The fixtures of producers that have less than 2 MB."""
    folders = sorted({path.parent for path in (FIXTURES / "producers").glob("*/*/*.safetensors")})
    small = (path for path in folders if sum(file.stat().st_size for file in path.iterdir()) < 2_000_000)
    return tuple(path for path in small if (path / "config.json").exists())


def places(value: Any, parent: Any = None, key: Any = None) -> Iterator[tuple[Any, Any]]:
    """Each place in a JSON value but the top, as the container and the key or index in it."""
    if parent is not None:
        yield parent, key
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for inner, content in list(items):
        yield from places(content, value, inner)


# changes of a JSON value in place, and of a file's data; each gives its name


def change_mildly(config: Json, chance: random.Random) -> str:
    """Other numbers, another order, or what every reader may pass over: who wrote it and when."""
    numbers = [
        (parent, key)
        for parent, key in places(config)
        if isinstance(parent[key], (int, float)) and not isinstance(parent[key], bool)
    ]
    name = chance.choice(("number", "order", "mark"))
    if name == "mark":
        config[chance.choice(("transformers_version", "_name_or_path", "use_cache"))] = chance.choice(
            (None, "4")
        )
    elif name == "order":
        items = chance.sample(list(config.items()), len(config))
        config.clear()
        config.update(items)
    elif numbers:
        parent, key = chance.choice(numbers)
        parent[key] *= chance.choice((2, 3, 10))
    return name


def change_wildly(config: Json, chance: random.Random) -> str:
    parent, key = chance.choice(list(places(config)))
    value = parent[key]
    name = chance.choice(("value", "key", "none", "nest", "type"))
    match name:
        case "value":
            parent[key] = deepcopy(chance.choice((*VALUES, *ODD)))
        case "key":
            inner = [value for value in config.values() if isinstance(value, dict)]
            new = deepcopy(chance.choice((*VALUES, *ODD)))
            chance.choice([config, *inner])[chance.choice((*KEYS, *ODD[:7]))] = new
        case "none":
            del parent[key]
        case "nest":
            for _ in range(chance.choice((1, 2, 20, 300))):
                parent[key] = chance.choice(([parent[key]], {"a": parent[key]}))
        case "type":
            parent[key] = chance.choice((str(value), [value], {"value": value}, bool(value), None))
    return name


def turn(header: Json, data: bytes, chance: random.Random) -> bytes:
    """A tensor's own bytes in another order: other weights, as good as those before."""
    start, stop = header[chance.choice([name for name in header if name != "__metadata__"])]["data_offsets"]
    half = start + (stop - start) // 4 * 2
    return data[:start] + data[half:stop] + data[start:half] + data[stop:]


def change_weights(path: Path, chance: random.Random, *, is_mild: bool) -> str:
    """Change the data of a file, its header's JSON, or its length."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    name = "turn" if is_mild else chance.choice((*["header"] * 6, "data cut", "data", "cut"))
    if name == "turn":
        data = turn(header, data, chance)
    elif name == "header":
        change_wildly(header, chance)
    elif name == "data cut":
        data = data[: chance.randrange(len(data) + 1)]
    elif name == "data":
        data = bytes(byte if chance.random() < 0.99 else chance.randrange(256) for byte in data)
    whole = framed(json.dumps(header).encode(), data)
    path.write_bytes(whole[: chance.randrange(len(whole))] if name == "cut" else whole)
    return name


def change(folder: Path, chance: random.Random) -> list[str]:
    """Change a checkpoint's files; the names of the changes."""
    is_mild = chance.random() < 0.7
    done: list[str] = []
    if is_config := chance.random() < 0.75:
        config = json.loads((folder / "config.json").read_text())
        edit = change_mildly if is_mild else change_wildly
        done += [edit(config, chance) for _ in range(chance.choice((1, 1, 2, 3)))]
        (folder / "config.json").write_text(json.dumps(config))
    if not is_config or chance.random() < 0.3:
        path = chance.choice(sorted(folder.glob("*.safetensors")))
        done.append(change_weights(path, chance, is_mild=is_mild))
    return done


Call = Callable[[str, Path, random.Random], object]


def convert(source: str, place: Path, chance: random.Random) -> object:
    return eaglectl.convert(
        source,
        place / "out",
        layout=chance.choice(writable()),
        target=chance.choice(TARGETS),
        answers=Answers(assume=chance.random() < 0.9),
        force_unserved=chance.random() < 0.8,
        dtype=chance.choice((None, None, "float32", "bfloat16")),
        max_shard_size=chance.choice((None, None, "20KB")),
        measure=None,
    )


STATED: dict[str, Any] = {"dry_run": True, "licence": "mit", "base_model": "org/target"}
CALLS: dict[str, tuple[int, Call]] = {
    "inspect": (1, lambda source, place, chance: eaglectl.inspect(source)),
    "validate": (2, lambda source, place, chance: eaglectl.validate(source, target=chance.choice(TARGETS))),
    "diff": (1, lambda source, place, chance: eaglectl.diff(source, str(chance.choice(sources())))),
    "ready": (1, lambda source, place, chance: eaglectl.ready(source)),
    "convert": (6, convert),
    "upload": (1, lambda source, place, chance: eaglectl.upload(source, "org/name", **STATED)),
}


def attack(place: Path, seed: int, number: int) -> str:
    """One change and one call; "answer", "written", "refused". Fails for a fault, a slow call, a leftover."""
    chance = random.Random(f"{seed}:{number}")
    for name in ("drafter", "out"):
        shutil.rmtree(place / name, ignore_errors=True)
    fixture = chance.choice(sources())
    source = Path(shutil.copytree(fixture, place / "drafter"))
    changes = change(source, chance)
    name = chance.choices(list(CALLS), [share for share, _ in CALLS.values()])[0]
    before, began, result = contents(place), time.monotonic(), "answer"
    about = f"EAGLECTL_RANDOM={seed}:{number} ({name} of {fixture.parent.name}/{fixture.name}: {changes})"
    try:
        CALLS[name][1](str(source), place, chance)
    except EaglectlError as error:
        result = "refused"
        assert str(error), about
    except BaseException as error:
        error.add_note(about)
        raise
    assert time.monotonic() - began < SLOWEST, about
    after = contents(place)
    made = {path.partition("/")[0] for path in after.keys() - before.keys()}
    assert before.items() <= after.items() and made <= {"out"}, (about, made)
    assert result != "refused" or not made, (about, made)
    return "written" if made else result


def attacks(place: Path, seed: int, numbers: Iterator[int], monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The results of these changes, and that none left anything in the temporary folder."""
    temporary = place / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    figures = Counter(attack(place, seed, number) for number in numbers)
    assert list(temporary.iterdir()) == []
    return figures


def test_what_is_changed_at_random_is_answered_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert attacks(tmp_path, 1, iter(range(20)), monkeypatch)["written"] >= 2


@pytest.mark.slow
def test_what_is_changed_at_random_for_minutes_is_answered_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    given = os.environ.get("EAGLECTL_RANDOM", "")
    seed = int(given.partition(":")[0] or random.randrange(2**32))
    print(f"seed {seed}")
    end = time.monotonic() + 60 * float(os.environ.get("EAGLECTL_MINUTES", "2"))
    numbers = itertools.takewhile(lambda number: time.monotonic() < end, itertools.count())
    if ":" in given:
        numbers = iter([int(given.partition(":")[2])])
    figures = attacks(tmp_path, seed, numbers, monkeypatch)
    record_property(FIGURES, {"random changes with seed": seed, **figures})
    assert ":" in given or figures["written"] > 0.05 * figures.total(), figures
