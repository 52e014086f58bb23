"""The steps of `ready`, and how long they take, said before they begin."""

from pathlib import Path

from eaglectl.text import duration

REFERENCE = "the reference"
# seconds of a run that no size explains, and for each GB of the target's weights and new token: one core of
# 2.5 GHz on the pairs of fixtures/
REFERENCE_START, RATE = 5.0, 0.045
# an engine loads its compiler, the target and the drafter, and does so again for plain decoding
ENGINE_START, ENGINE_PASSES = 70.0, 2
# a conversion reads, writes and reads again so many bytes a second
CONVERSION_RATE = 0.4e9


def steps_text(source: Path, target: Path | None, runners: tuple[str, ...], tokens: int | None) -> str:
    """The steps in one line.

    `runners` is what runs the drafter on the target, the reference or engines; none where nothing can run.
    `tokens` are the new ones of all prompts, None where they were not counted.
    """
    converted = f"convert and validate, about {duration(weights_size(source) / CONVERSION_RATE)}"
    if target is None or not runners:
        steps = ["read the files and say what engines do with them", f"where that is wrong, {converted}"]
    else:
        run = f"about {duration(_run_seconds(target, runners, tokens))}" if tokens else "as its prompts take"
        steps = [
            "read the files, and measure what they leave open",
            f"measure as stored in {' and '.join(runners)}, {run}",
            f"where an engine is wrong, {converted}, and measure again, {run}",
        ]
    return "; ".join(f"{number} {step}" for number, step in enumerate(steps, 1))


def _run_seconds(target: Path, runners: tuple[str, ...], tokens: int) -> float:
    work = RATE * weights_size(target) / 1e9 * tokens
    return sum(
        REFERENCE_START + work if runner == REFERENCE else ENGINE_START + ENGINE_PASSES * work
        for runner in runners
    )


def weights_size(folder: Path) -> int:
    """The bytes of the weights in a folder."""
    files = (path for path in folder.glob("*") if path.suffix in (".safetensors", ".bin", ".pt"))
    return sum(path.stat().st_size for path in files)
