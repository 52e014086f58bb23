"""Deal the prompts of the real pair: templates by topics, in four sets that share no topic.

    python tools/real/prompts.py [--out FOLDER]

Text written for eaglectl (Apache-2.0). A topic belongs to one set, so that no prompt of one set is another's
with a word changed. A line has `messages`, `set` (the kind: code, maths, chat, writing) and, for chats of two
turns, `then`: what the user asks after the target's first answer (answers.py).
"""

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# by kind; of a maths problem the text, and the ranges of its numbers
TOPICS = json.loads(Path(__file__).with_name("topics.json").read_text())
SEED = 27
# by set: topics of each kind, and prompts of each kind
SETS = {"calibration": (6, 25), "gate": (4, 15), "test": (4, 10)}
TRAIN = "train"
TURNS, SYSTEMS = 0.25, 0.15  # shares of prompts with a second turn, and with a system prompt of their own
Line = dict[str, Any]

SYSTEM = (
    "You are a helpful assistant. Answer in short sentences.",
    "You are a patient teacher who explains things step by step.",
    "You are an expert. Be exact and say what you do not know.",
    "Answer in plain English. Use lists where they help.",
    "You are a friendly assistant on a website for families.",
)

TEMPLATES = {
    "code": (
        "Write a Python function that {}.",
        "Write a function in Python that {}. Add a docstring and a short example.",
        "How do I write code in Python that {}?",
        "Show me a JavaScript function that {}.",
        "Write a Python program that {} and explain how it works.",
        "Write a Python function that {} and a unit test for it.",
        "I am learning to program. Help me write a small program that {}.",
        "Write a shell script or a Python script that {}.",
        "Explain step by step how to write a function that {}, then give the code in Python.",
        "Write a Python class with a method that {}.",
    ),
    "maths": (
        "{}",
        "{} Show your work.",
        "{} Explain each step.",
        "Solve this problem: {}",
        "My homework says: {} How do I solve it?",
        "{} Give the answer at the end.",
        "Think step by step. {}",
        "I do not understand this question. {} Can you help me?",
    ),
    "chat": (
        "What is {}?",
        "Can you explain {} to me?",
        "Tell me about {}.",
        "Why is {} important?",
        "What should I know about {}?",
        "Give me five facts about {}.",
        "Explain {} to a child of ten years.",
        "What are the advantages and disadvantages of {}?",
        "How does {} work?",
        "I would like to learn more about {}. Where do I start?",
        "What are common mistakes that people make with {}?",
        "Summarise the history of {} in a few sentences.",
    ),
    "writing": (
        "Write a short story about {}.",
        "Write a poem about {}.",
        "Write an email to a friend about {}.",
        "Write a short essay about {}.",
        "Write the first paragraph of a novel about {}.",
        "Write a blog post about {}.",
        "Write a dialogue between two people about {}.",
        "Write a letter to the editor of a newspaper about {}.",
        "Give me ten titles for a book about {}.",
        "Write a description of {} for a travel magazine.",
        "Write a speech about {}.",
        "Write a short news report about {}.",
    ),
}

FOLLOWING = {
    "code": (
        "Can you explain how this code works?",
        "Now add error handling.",
        "Can you make it faster?",
        "Write a test for it.",
        "Please show an example of how to call it.",
    ),
    "maths": (
        "Can you check that answer?",
        "Explain the last step again, please.",
        "What if all the numbers were doubled?",
        "Write the solution as one equation.",
    ),
    "chat": (
        "Can you give me an example?",
        "Please say that in two sentences.",
        "Why is that so?",
        "Tell me more about the first point.",
        "What are the risks?",
        "Thank you. How can I explain this to my parents?",
    ),
    "writing": (
        "Make it shorter.",
        "Please write it in a more formal tone.",
        "Now change the ending.",
        "Add more details about the place.",
        "Can you suggest a title for it?",
    ),
}

NAMES = ("Anna", "Ben", "Carla", "David", "Emma", "Farid", "Grace", "Hugo", "Ines", "John", "Kofi", "Lena")
ITEMS = ("apple", "book", "pencil", "ticket", "stamp", "shirt", "marble", "cookie", "chair", "lamp", "card")


def maths_topics(draw: random.Random, count: int) -> list[str]:
    """Problems with drawn numbers; a problem is a topic."""
    problems = TOPICS["maths"]
    made: dict[str, None] = {}
    while len(made) < count:
        problem = problems[len(made) % len(problems)]
        a, b = draw.randint(*problem["a"]), draw.randint(*problem["b"])
        text = problem["text"].format(name=draw.choice(NAMES), item=draw.choice(ITEMS), a=a, b=b)
        made[text] = None
    return list(made)


def topics(kind: str) -> list[str]:
    draw = random.Random(f"{SEED} {kind}")
    found = maths_topics(draw, 160) if kind == "maths" else list(TOPICS[kind])
    draw.shuffle(found)
    return found


def lines_of(kind: str, chosen: list[str], draw: random.Random) -> Iterator[Line]:
    """Each template with each topic, in a drawn order."""
    pairs = [(template, topic) for template in TEMPLATES[kind] for topic in chosen]
    draw.shuffle(pairs)
    for template, topic in pairs:
        text = template.format(topic)
        messages = [{"role": "user", "content": text[0].upper() + text[1:]}]
        if draw.random() < SYSTEMS:
            messages.insert(0, {"role": "system", "content": draw.choice(SYSTEM)})
        line: Line = {"set": kind, "messages": messages}
        if draw.random() < TURNS:
            line["then"] = draw.choice(FOLLOWING[kind])
        yield line


def deal() -> dict[str, list[Line]]:
    """All prompts by set; those of `train` in an order in which any beginning holds every kind."""
    sets: dict[str, list[Line]] = {name: [] for name in SETS}
    train: list[Line] = []
    for kind in TEMPLATES:
        left = topics(kind)
        for name, (count, prompts) in SETS.items():
            chosen, left = left[:count], left[count:]
            lines = lines_of(kind, chosen, random.Random(f"{SEED} {kind} {name}"))
            sets[name] += [line for line, _ in zip(lines, range(prompts), strict=False)]
        train += lines_of(kind, left, random.Random(f"{SEED} {kind} train"))
    random.Random(f"{SEED} order").shuffle(train)
    return {TRAIN: train, **sets}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "fixtures/real/dealt")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in deal().items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text)
        print(f"{name}: {len(lines)} prompts")


if __name__ == "__main__":
    main()
