"""Coverage of the draft vocabulary against acceptance, in two languages at five sizes: a table in Markdown.

    python benchmarks/coverage.py tiny|real [--scratch DIR]

The tokens of the target's answers to prompts of the first language are counted (`smoke
--write-token-counts`), the drafter is pruned to the most counted of them (`convert --draft-vocab`), and run
on other prompts of both languages. `tiny` is fixtures/tiny, with Python and with English prose of docs/;
`real` is fixtures/real/specforge with SmolLM2-135M-Instruct (tools/real/target.py), English and French.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools/real"))

from target import cache_folder  # noqa: E402

FRENCH = (
    "Explique en français pourquoi le ciel est bleu.",
    "Écris une courte histoire sur un chat et un oiseau.",
    "Quels sont les avantages du vélo en ville ?",
    "Décris les saisons de l'année en quelques phrases.",
    "Donne une recette simple de soupe aux légumes.",
    "Comment apprendre une langue étrangère rapidement ?",
    "Raconte l'histoire de la ville de Paris en bref.",
    "Pourquoi les plantes ont-elles besoin de lumière ?",
    "Écris une lettre à un ami pour l'inviter à la fête.",
    "Quels conseils donnes-tu pour bien dormir la nuit ?",
    "Explique ce qu'est un ordinateur à un enfant.",
    "Décris une journée à la plage avec ta famille.",
)
PROSE = ("docs/convert.md", "docs/calibrate.md", "docs/questions.md", "docs/speed.md", "docs/ready.md")


def lines(path: Path, count: int) -> list[dict[str, Any]]:
    """Every few of the JSON lines of a file, `count` of them."""
    every = [json.loads(line) for line in path.read_text().splitlines()]
    return every[:: max(len(every) // count, 1)][:count]


def prose(count: int) -> list[str]:
    """Beginnings of long paragraphs of the documentation."""
    texts = [part for name in PROSE for part in (ROOT / name).read_text().split("\n\n")]
    words = [" ".join(text.split())[:120] for text in texts if text[:1].isalpha() and len(text) > 200]
    return words[:count]


def pairs() -> dict[str, dict[str, Any]]:
    """The drafter and target of each pair, its languages with their prompts, and the sizes."""
    tiny, real = ROOT / "fixtures/tiny", ROOT / "fixtures/real"
    python = [{"prompt": line["prompt"][:160]} for line in lines(tiny / "prompts.jsonl", 12)]
    french = [{"messages": [{"role": "user", "content": text}]} for text in FRENCH]
    english = [{"messages": line["messages"]} for line in lines(real / "calibration.jsonl", 24)]
    chats = [{"messages": line["messages"]} for line in lines(real / "test.jsonl", 12)]
    return {
        "tiny": {
            "drafter": tiny / "eagle3",
            "target": tiny / "target",
            "counted": [{"prompt": line["prompt"][:160]} for line in lines(tiny / "gate.jsonl", 24)],
            "languages": {"Python": python, "English prose": [{"prompt": text} for text in prose(12)]},
            "sizes": (40, 80, 120, 180, 240),
            "tokens": 48,
        },
        "real": {
            "drafter": real / "specforge",
            "target": cache_folder() / "target",
            "counted": english,
            "languages": {"English": chats, "French": french},
            "sizes": (256, 512, 1024, 2048, 4096),
            "tokens": 48,
        },
    }


def run(*arguments: object) -> dict[str, Any]:
    """The JSON document of a command that must end in 0, 1 or 3."""
    command = [sys.executable, "-m", "eaglectl", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode not in (0, 1, 3) or not done.stdout:
        raise SystemExit(done.stderr)
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def write_prompts(path: Path, prompts: Sequence[Mapping[str, Any]], name: str = "prompts") -> str:
    """Write JSON lines of one set; return them."""
    text = "".join(json.dumps({**prompt, "set": name}) + "\n" for prompt in prompts)
    path.write_text(text)
    return text


def measure(pair: Mapping[str, Any], folder: Path) -> None:
    """Print a row for each size and language."""
    target = ["--target", pair["target"], "--max-tokens", pair["tokens"]]
    smoke = ["--engine", "reference", "--no-lossless", *target]
    counted, test = folder / "counted.jsonl", folder / "test.jsonl"
    write_prompts(counted, pair["counted"])
    sets = pair["languages"].items()
    test.write_text("".join(write_prompts(test, prompts, name) for name, prompts in sets))
    counts = folder / "counts.txt"
    run("smoke", pair["drafter"], *smoke, "--prompts", counted, "--write-token-counts", counts)
    print("| draft tokens | language | coverage | length at most | length | by position |")
    print("|---|---|---|---|---|---|")
    for size in (*pair["sizes"], None):
        drafter = pair["drafter"]
        if size is not None:
            drafter = folder / f"pruned-{size}"
            vocabulary = ["--draft-vocab", size, "--token-counts", counts, "-o", drafter]
            given = [*vocabulary, "--no-measure"]
            run("convert", pair["drafter"], *given, "--target", pair["target"])
        report = run("smoke", drafter, *smoke, "--prompts", test)
        for name, part in report["sets"].items():
            share, (low, high) = report["coverage"]["sets"][name], part["interval"]
            by_position = ", ".join(f"{rate['value']:.0%}" for rate in part["per_position"])
            length = f"{part['acceptance_length']:.2f} [{low:.2f}, {high:.2f}]"
            figures = f"{share['share']:.1%} | {share['most_length']:.2f} | {length} | {by_position}"
            print(f"| {size or 'all of the drafter'} | {name} | {figures} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pair", choices=("tiny", "real"))
    parser.add_argument("--scratch", default=tempfile.gettempdir())
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        measure(pairs()[options.pair], Path(folder))


if __name__ == "__main__":
    main()
