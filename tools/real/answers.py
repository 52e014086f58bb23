"""The real target's own answers to dealt prompts, by vLLM's CPU build: greedy, and sampled at 0.7.

    python tools/real/answers.py PROMPTS.jsonl OUT_FOLDER --target FOLDER [--batch 250] [--greedy-only]

Each prompt gives two chats: a greedy one, of two turns where the prompt has `then`, and a sampled one of one
turn. A batch of prompts is one file, written whole; batches that are there are not made again, so that a run
goes on where the last one ended. A line has `index` (of the prompt), `set`, `temperature`, `token_ids` (the
chat from its first token to the end of the last answer), `spans` ([start, end) of each answer) and, of two
turns, `messages` up to the second question.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_KVCACHE_SPACE": "3",
}

TEMPERATURE, SEED = 0.7, 27
FIRST, SECOND = 256, 192  # tokens of an answer
LENGTH = 1024  # tokens of a chat
Line = dict[str, Any]


def dtype() -> str:
    """bfloat16 where the processor has instructions for it; elsewhere float32 is faster."""
    flags = Path("/proc/cpuinfo").read_text()
    return "bfloat16" if "avx512_bf16" in flags or "amx_bf16" in flags else "float32"


class Answerer:
    """Chats of a target by vLLM."""

    def __init__(self, target: str) -> None:
        from vllm import LLM

        self.engine = LLM(
            target, dtype=dtype(), max_model_len=LENGTH, max_num_seqs=128, gpu_memory_utilization=0.2
        )
        self.tokenizer = self.engine.get_tokenizer()

    def encode(self, messages: list[dict[str, str]]) -> list[int]:
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids: list[int] = self.tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def generate(self, texts: list[list[int]], settings: list[dict[str, Any]]) -> list[list[int]]:
        """An answer to each text, with its end of sequence where it came to it."""
        from vllm import SamplingParams

        made = self.engine.generate(
            [{"prompt_token_ids": text} for text in texts],
            [SamplingParams(**setting) for setting in settings],
            use_tqdm=False,
        )
        return [list(result.outputs[0].token_ids) for result in made]

    def answer(self, prompts: list[tuple[int, Line]], is_greedy_only: bool) -> list[Line]:
        """The chats of a batch of prompts."""
        texts = [self.encode(line["messages"]) for _, line in prompts]
        greedy = [{"temperature": 0.0, "max_tokens": FIRST}] * len(texts)
        sampled = [
            {"temperature": TEMPERATURE, "seed": SEED + index, "max_tokens": FIRST} for index, _ in prompts
        ]
        if is_greedy_only:
            sampled = []
        answers = self.generate(texts + texts[: len(sampled)], greedy + sampled)
        chats = [
            {
                "index": prompts[number % len(texts)][0],
                "set": prompts[number % len(texts)][1]["set"],
                "temperature": setting["temperature"],
                "token_ids": texts[number % len(texts)] + answer,
                "spans": [[len(texts[number % len(texts)]), len(texts[number % len(texts)]) + len(answer)]],
            }
            for number, (answer, setting) in enumerate(zip(answers, greedy + sampled, strict=True))
        ]
        self.add_turns(chats[: len(texts)], [line for _, line in prompts])
        return chats

    def add_turns(self, chats: list[Line], lines: list[Line]) -> None:
        """Add the second turn to greedy chats whose prompt has `then`."""
        turns = [(chat, line) for chat, line in zip(chats, lines, strict=True) if "then" in line]
        texts = []
        for chat, line in turns:
            start, end = chat["spans"][0]
            answer = self.tokenizer.decode(chat["token_ids"][start:end], skip_special_tokens=True)
            chat["messages"] = second_turn(line, answer)
            texts.append(self.encode(chat["messages"]))
        answers = self.generate(texts, [{"temperature": 0.0, "max_tokens": SECOND}] * len(texts))
        for (chat, _), text, answer in zip(turns, texts, answers, strict=True):
            # the spans of a first answer that was encoded again as it was
            known = chat["token_ids"]
            chat["spans"] = chat["spans"] if text[: len(known)] == known else []
            chat["spans"] = [*chat["spans"], [len(text), len(text) + len(answer)]]
            chat["token_ids"] = text + answer


def second_turn(line: Line, answer: str) -> list[dict[str, str]]:
    """The messages up to the user's second question."""
    return [
        *line["messages"],
        {"role": "assistant", "content": answer},
        {"role": "user", "content": line["then"]},
    ]


def write_lines(path: Path, lines: list[Line]) -> None:
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps(line) + "\n" for line in lines))
    part.rename(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prompts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", required=True)
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--greedy-only", action="store_true")
    parser.add_argument("--first", type=int, default=0, help="the batch to begin with")
    parser.add_argument("--batches", type=int, default=10**6, help="stop after so many batches in all")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    prompts = [json.loads(line) for line in options.prompts.read_text().splitlines()]
    engine = None
    for number, start in enumerate(range(0, len(prompts), options.batch)):
        path = options.out / f"{number:03}.jsonl"
        if path.exists() or not options.first <= number < options.batches:
            continue
        engine = engine or Answerer(options.target)
        began = time.monotonic()
        batch = list(enumerate(prompts))[start : start + options.batch]
        chats = engine.answer(batch, options.greedy_only)
        write_lines(path, chats)
        tokens = sum(end - first for chat in chats for first, end in chat["spans"])
        print(
            f"{path.name}: {len(chats)} chats, {tokens} tokens, {time.monotonic() - began:.0f} s", flush=True
        )


if __name__ == "__main__":
    main()
