"""Every kind of file that is read, twice as large: processor time at most doubles, or a budget refuses it."""

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from eaglectl.conversion.readings import read_counts
from eaglectl.errors import EaglectlError
from eaglectl.judge.rule import read_policy
from eaglectl.run.prompts import choose_prompts
from tests.builders import (
    call,
    drafter_folder,
    drafter_tensors,
    framed,
    safetensors_bytes,
    sharded_folder,
    target_of,
    write_record,
    write_safetensors,
)
from tests.pickles import pickled_folder
from tests.processor import seconds
from tests.tiny import TINY
from tests.validation.test_quantisation import MODULES, compressed, scaled

# how much longer twice the input may take, and seconds that do not count
GROWTH, FLOOR = 2.6, 0.12
Make = Callable[[Path, int], Path]


def text(name: str, unit: str, count: int, head: str = "", tail: str = "") -> Make:
    """A drafter with a text of `count` units at the first size."""

    def make(parent: Path, times: int) -> Path:
        folder = drafter_folder(parent)
        (folder / name).write_text(head + unit * (count * times) + tail)
        return folder

    return make


def numbered(name: str, unit: str, count: int, head: str = "") -> Make:
    """The same with a number in each unit."""

    def make(parent: Path, times: int) -> Path:
        folder = drafter_folder(parent)
        (folder / name).write_text(head + "".join(unit.format(i) for i in range(count * times)))
        return folder

    return make


def config(value: Callable[[int], object], name: str = "config.json", key: str = "zz") -> Make:
    """A drafter whose config, or another JSON file, has a value of a size."""

    def make(parent: Path, times: int) -> Path:
        folder = drafter_folder(parent)
        file = folder / name
        keys = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(keys | {key: value(times)}))
        return folder

    return make


def left_out(names: Callable[[int], list[str]]) -> Make:
    """A quantised drafter whose config leaves these modules out."""

    def make(parent: Path, times: int) -> Path:
        stated = compressed("fc", "lm_head", *names(times))
        return drafter_folder(parent, config=stated, tensors=scaled(*MODULES))

    return make


def header(entry: Callable[[int, int], str], count: int, metadata: str = '{"format":"pt"}') -> Make:
    """A drafter whose header has more entries, each made of its number and of the end of the data."""

    def make(parent: Path, times: int) -> Path:
        folder = drafter_folder(parent)
        raw = safetensors_bytes(drafter_tensors())
        length = int.from_bytes(raw[:8], "little")
        end = len(raw) - 8 - length
        entries = "".join(f",{entry(number, end)}" for number in range(count * times))
        table = f'{raw[8 : 8 + length].decode()[:-1]},"__metadata__":{metadata}{entries}}}'
        (folder / "model.safetensors").write_bytes(framed(table.encode(), raw[8 + length :]))
        return folder

    return make


def tensor(name: Callable[[int], str]) -> Make:
    """A drafter with a tensor of a name of a size."""

    def make(parent: Path, times: int) -> Path:
        folder = drafter_folder(parent)
        tensors = drafter_tensors()
        write_safetensors(folder / "model.safetensors", {name(times): tensors["norm.weight"], **tensors})
        return folder

    return make


def metadata(count: int) -> Make:
    def make(parent: Path, times: int) -> Path:
        folder = drafter_folder(parent)
        stated = {f"k{number}": "/home/someone/x" * 20 for number in range(count * times)}
        write_safetensors(folder / "model.safetensors", drafter_tensors(), stated)
        return folder

    return make


def index(shards: int, entries: int) -> Make:
    """An index of many shards that names tensors which are nowhere."""

    def make(parent: Path, times: int) -> Path:
        folder = sharded_folder(parent)
        file = folder / "model.safetensors.index.json"
        stated = json.loads(file.read_text())
        norm = drafter_tensors()["norm.weight"]
        for number in range(shards * times):
            write_safetensors(folder / f"m{number}.safetensors", {f"t{number}.weight": norm})
        files = [f"m{number}.safetensors" for number in range(shards * times)]
        names = [f"{'t' if number < len(files) else 'e'}{number}.weight" for number in range(entries * times)]
        stated["weight_map"] |= {name: files[number % len(files)] for number, name in enumerate(names)}
        file.write_text(json.dumps(stated))
        return folder

    return make


def record(key: str, value: Callable[[int], object]) -> Make:
    def make(parent: Path, times: int) -> Path:
        folder = drafter_folder(parent)
        write_record(folder, **{key: value(times)})
        return folder

    return make


def nested(times: int) -> dict[str, object]:
    value: dict[str, object] = {"upgrade": {}}
    for _ in range(14 * times):
        value = {"previous": value, "upgrade": {}}
    return value


LETTERS = "aB3" * 800
FIRSTS = {
    "GitLab": "-glpat-",
    "Hugging Face": "hf_",
    "GitHub": "ghp_",
    "AWS": "AKIA",
    "AWS secret": "aws_secret_key=",
    "Google": "AIza",
    "Azure": "AccountKey=",
    "OpenAI": " sk-",
    "Slack": "xoxb-",
    "npm": "npm_",
    "PyPI": "pypi-AgEIcHlwaS5vcmc",
    "W&B": "wandb login ",
    "W&B new": "wandb_v1_",
    "private key": "-----BEGIN ",
    "bearer": "authorization: bearer ",
}
MATTER = "---\nlicense: x\nbase_model:\n"
SERVE = 'vllm serve a --speculative-config \'{{"method": "eagle", "n": {}}}\'\n\n'
DIGEST = "0" * 64

CASES: dict[str, Make] = {
    "config: a list": config(lambda times: list(range(12_000 * times))),
    "config: keys two objects deep": config(lambda times: {"a": {f"k{i}": i for i in range(2_400 * times)}}),
    "config: empty lists": config(lambda times: [[]] * (12_000 * times)),
    "config: a long text": config(lambda times: "/a" * (100_000 * times)),
    "config: paths": config(lambda times: ["/home/someone/x"] * (2_000 * times)),
    "config: a long key": config(
        lambda times: {"k" * (20_000 * times): {f"k{i}": i for i in range(500 * times)}}
    ),
    "config: layer ids": config(
        lambda times: list(range(9_000 * times)), key="eagle_aux_hidden_state_layer_ids"
    ),
    "config: unknown ids": config(lambda times: {f"layer_ids_{i}": i for i in range(1_000 * times)}),
    "config: classes": config(lambda times: ["LlamaForCausalLM"] * (5_000 * times), key="architectures"),
    "config: a name of a class": config(lambda times: ["L" * (100_000 * times)], key="architectures"),
    "config: rope": config(lambda times: {f"k{i}": i for i in range(1_000 * times)}, key="rope_scaling"),
    "config: eagle_config": config(
        lambda times: {f"k{i}": i for i in range(1_000 * times)}, key="eagle_config"
    ),
    "config: a target's name": config(lambda times: "a/" * (50_000 * times), key="target_model_name_or_path"),
    "hf_quant_config": config(
        lambda times: ["a*"] * (60_000 * times), "hf_quant_config.json", "exclude_modules"
    ),
    "quantisation: names": left_out(lambda times: [f"layers.{i}.x" for i in range(500 * times)]),
    "quantisation: globs": left_out(lambda times: [f"{'*' * 30}a*b*{i}" for i in range(500 * times)]),
    "quantisation: a name": left_out(lambda times: ["*a" * (100 * times)] * 200),
    "quantisation: expressions": left_out(lambda times: [f"re:.*a.*b{i}" for i in range(25 * times)]),
    "generation_config": config(
        lambda times: list(range(60_000 * times)), "generation_config.json", "eos_token_id"
    ),
    "tokenizer_config": config(
        lambda times: {str(i): {"content": "<|im_end|>" * 3} for i in range(10_000 * times)},
        "tokenizer_config.json",
        "added_tokens_decoder",
    ),
    "header: escaped keys": header(
        lambda i, end: f'"z{i}":{{"dtype":"F32","shape":[0],"data\\u005foffsets":[{end},{end}]}}', 3_000
    ),
    "header: long names": header(
        lambda i, end: f'"z{i}{"y" * 400}":{{"dtype":"F32","shape":[0],"data_offsets":[{end},{end}]}}', 900
    ),
    "header: axes": header(
        lambda i, end: f'"z{i}":{{"dtype":"F32","shape":[{"1," * 500}0],"data_offsets":[{end},{end}]}}', 50
    ),
    "header: layers": header(
        lambda i, end: (
            f'"layers.{i}.mlp.up_proj.weight":{{"dtype":"F32","shape":[0],"data_offsets":[{end},{end}]}}'
        ),
        700,
    ),
    "header: metadata": metadata(200),
    "a name of wrappers": tensor(lambda times: "module." * (25_000 * times) + "x"),
    "a name of wrappers that is read": tensor(lambda times: "module." * (70 * times) + "x"),
    "a name of inner wrappers": tensor(lambda times: "a._orig_mod." * (40 * times) + "x"),
    "index": index(60, 12_000),
    "record: tensors": record("tensors", lambda times: [{"name": f"n{i}"} for i in range(15_000 * times)]),
    "record: earlier ones": record("previous", nested),
    "record: a long text": record("source", lambda times: {"label": "x/" * (100_000 * times)}),
    "sums: one name": numbered("SHA256SUMS", "{:064x}  model.safetensors\n", 3_000),
    "sums: other names": numbered("SHA256SUMS", DIGEST + "  n{}\n", 3_000),
    "sums: no entries": text("SHA256SUMS", "x\n", 50_000),
    "card: a quote that stays open": text("README.md", "ab\n", 20_000, "vllm --spec '\n"),
    "card: quotes that open again": text("README.md", "a'b'c'\n", 5_000, "vllm --spec '\n"),
    "card: quotes of many commands": text("README.md", "vllm --spec '\na\nb\nc\n\n", 5_000),
    "card: commands": numbered("README.md", SERVE, 300),
    "card: one long command": text("README.md", "--a b ", 5_000, "vllm serve --speculative-config '{}' "),
    "card: a command of one word": text("README.md", "\\'", 50_000, "vllm serve --speculative-config "),
    "card: backslashes": text("README.md", "\\\n", 50_000, "vllm --spec '"),
    "card: front matter": text("README.md", "  - a/b\n", 20_000, MATTER, "---\n"),
    "card: front matter that does not end": text("README.md", "---  \nx\n ---   ", 10_000, MATTER),
    "card: homes": text("README.md", "/home/user/x ", 20_000),
    "card: slashes": text("README.md", "/home" + "/" * 500 + "\n", 500),
    "card: backticks": text("README.md", "`eaglectl `", 20_000),
    "template": text("chat_template.jinja", "{% if x %}{{ x }}{% endif %}", 10_000),
    "tokenizer: merges": config(lambda times: [["a", "b"]] * (60_000 * times), "tokenizer.json", "merges"),
    **{
        f"secrets: {name}": text("notes.txt", f"{first}{LETTERS}\n", 400 if name == "GitLab" else 100)
        for name, first in FIRSTS.items()
    },
    **{f"secrets: {name}, dense": text("notes.txt", first, 10_000) for name, first in FIRSTS.items()},
}
QUICK = ("config: a list", "sums: one name", "card: a quote that stays open", "card: commands")


def check_growth(act: Callable[[int], Callable[[], object]], sizes: tuple[int, ...]) -> None:
    """Twice the input takes at most GROWTH times the processor time, of which FLOOR does not count.

    Where a size is in the way of other work, the least of three counts.
    """
    acts = [act(size) for size in sizes]
    acts[0]()  # loads what is loaded once
    times = [seconds(each) for each in acts]
    for place in range(1, len(sizes)):
        for _ in range(2):
            if times[place] > GROWTH * max(times[place - 1], FLOOR):
                times[place] = min(times[place], seconds(acts[place]))
        assert times[place] <= GROWTH * max(times[place - 1], FLOOR), dict(zip(sizes, times, strict=True))


def judged(tmp_path: Path, make: Make, *words: str) -> Callable[[int], Callable[[], object]]:
    def act(times: int) -> Callable[[], object]:
        source = make(tmp_path / str(times), times)

        def judge() -> None:
            done = call(words[0], source, *(word.replace("OUT", f"{tmp_path}/{times}") for word in words[1:]))
            assert done.code in (0, 1, 2, 3), done.err[-600:]

        return judge

    return act


# of what is found there, other commands and reports have as much to say
OTHERS = (
    "config: a list",
    "config: paths",
    "config: a long key",
    "config: unknown ids",
    "header: layers",
    "header: long names",
    "a name of wrappers that is read",
    "index",
    "record: tensors",
    "record: earlier ones",
    "sums: one name",
    "sums: other names",
    "card: commands",
    "card: front matter",
    "card: homes",
)
WORDS = {
    "SARIF": "validate --output sarif=OUT.sarif",
    "JUnit": "validate --output junit=OUT.xml",
    "page": "validate --page OUT.html",
    "JSON": "validate --json -v",
    "inspect": "inspect -v --page OUT.html",
    "diff": f"diff {TINY / 'eagle3'}",
    "verify": "verify",
    "upload": "upload org/name --dry-run",
    "convert": "convert --dry-run",
}

SLOW = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]


@pytest.mark.parametrize("name", SLOW)
def test_validate_takes_at_most_twice_as_long_for_twice_the_input(tmp_path: Path, name: str) -> None:
    sizes = (1, 2) if name in QUICK else (2, 4, 8)
    check_growth(judged(tmp_path, CASES[name], "validate"), sizes)


@pytest.mark.slow
@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
@pytest.mark.parametrize("name", OTHERS)
def test_other_commands_take_at_most_twice_as_long(tmp_path: Path, name: str, words: str) -> None:
    check_growth(judged(tmp_path, CASES[name], *words.split()), (2, 4, 8))


# numbers of one hash: a set or a dict of them takes the square

MEETING = [number * (2**61 - 1) for number in range(64_000)]


@pytest.mark.slow
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("of_target", [True, False])
def test_token_ids_of_one_hash_take_at_most_twice_as_long(tmp_path: Path, file: str, of_target: bool) -> None:
    def act(times: int) -> Callable[[], object]:
        folder = drafter_folder(tmp_path / str(times))
        target = target_of(folder.parent / "target")
        path = (target if of_target else folder) / file
        keys = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(keys | {"eos_token_id": MEETING[: 6_000 * times]}))
        return lambda: call("validate", folder, "--target", target)

    check_growth(act, (2, 4, 8))


# pickles, as torch saves them

PICKLES: dict[str, Callable[[int], bytes]] = {
    "memo": lambda times: b"\x80\x02" + b"}\x94" * (40_000 * times) + b".",
    "a text": lambda times: (
        b"\x80\x02X" + (500_000 * times).to_bytes(4, "little") + b"a" * (500_000 * times) + b"."
    ),
    "names": lambda times: pickle.dumps(
        {f"module.layers.{i}.weight": None for i in range(10_000 * times)}, 2
    ),
    "lists": lambda times: b"\x80\x02" + b"]" * (40_000 * times) + b".",
    "a set": lambda times: b"\x80\x02](" + b"K\x01" * (200_000 * times) + b"e.",
    "globals": lambda times: b"\x80\x02" + b"ctorch\nFloatStorage\n0" * (20_000 * times) + b".",
    "keys of one hash": lambda times: (
        b"\x80\x02}("
        + b"".join(b"\x8a\x10" + n.to_bytes(16, "little") + b"\x85N" for n in MEETING[: 4_000 * times])
        + b"u."
    ),
    "digits": lambda times: b"\x80\x02I" + b"9" * (100_000 * times) + b"\n.",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PICKLES)
@pytest.mark.parametrize("is_archive", [True, False])
def test_a_pickle_takes_at_most_twice_as_long(tmp_path: Path, name: str, is_archive: bool) -> None:
    def make(parent: Path, times: int) -> Path:
        raw = PICKLES[name](times)
        if is_archive:
            file = io.BytesIO()
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr("archive/data.pkl", raw)
            raw = file.getvalue()
        return pickled_folder(parent, raw)

    check_growth(judged(tmp_path, make, "validate"), (1, 2, 4))


# files that a user names, which may come from elsewhere

READERS: dict[str, tuple[Callable[[Path], object], Callable[[int], str]]] = {
    "policy: keys": (read_policy, lambda times: "".join(f"a{i} = 1\n" for i in range(2_000 * times))),
    "policy: a dotted key": (read_policy, lambda times: "a.b.c.d = 1\n" * (2_000 * times)),
    "policy: tables": (read_policy, lambda times: "".join(f"[a{i}.b]\n" for i in range(2_000 * times))),
    "policy: suppressions": (
        read_policy,
        lambda times: '[[suppress]]\nrule = "EGL101"\nreason = "x"\n' * (500 * times),
    ),
    "policy: engines": (
        read_policy,
        lambda times: f"engines = {['vllm'] * (2_000 * times)}".replace("'", '"'),
    ),
    "policy: quotes": (read_policy, lambda times: 'a = """' + '"" ' * (5_000 * times)),
    "policy: an array": (read_policy, lambda times: "a = " + "[" * (50 * times)),
    "prompts: lines": (lambda path: choose_prompts(path, 5), lambda times: "a b c\n" * (60_000 * times)),
    "prompts: objects": (
        lambda path: choose_prompts(path, 5),
        lambda times: '{"messages": [{"role": "user", "content": "x"}]}\n' * (5_000 * times),
    ),
    "prompts: one of many turns": (
        lambda path: choose_prompts(path, 1),
        lambda times: json.dumps({"messages": [{"role": "user", "content": "x"}] * (10_000 * times)}),
    ),
    "counts: lines": (
        lambda path: read_counts(path, 1 << 40),
        lambda times: "".join(f"{i} 1\n" for i in range(30_000 * times)),
    ),
    "counts: words": (lambda path: read_counts(path, 9), lambda times: "1 " * (200_000 * times)),
    "counts: an object": (
        lambda path: read_counts(path, 1 << 40),
        lambda times: json.dumps({str(i): 1 for i in range(30_000 * times)}),
    ),
    "counts: an array": (
        lambda path: read_counts(path, 1 << 40),
        lambda times: json.dumps([1] * (60_000 * times)),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_a_file_that_is_named_takes_at_most_twice_as_long(tmp_path: Path, name: str) -> None:
    read, content = READERS[name]

    def act(times: int) -> Callable[[], object]:
        path = tmp_path / f"{times}.{'toml' if name.startswith('policy') else 'txt'}"
        path.write_text(content(times))

        def reading() -> None:
            with suppress(EaglectlError):
                read(path)

        return reading

    check_growth(act, (2, 4, 8))
