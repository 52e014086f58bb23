"""Statistics of a drafter's target, for a conversion to EAGLE-3.1."""

import hashlib
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eaglectl.api.converting import convert
from eaglectl.api.inputs import open_target
from eaglectl.checkpoint.checkpoint import read_checkpoint
from eaglectl.checkpoint.source import FolderSource, on_disk, open_folder
from eaglectl.errors import Refused, Unreadable, Usage
from eaglectl.formats.format import Answers
from eaglectl.formats.reading import read_drafter

if TYPE_CHECKING:
    from eaglectl.acceptance.prompts import Prompt
    from eaglectl.conversion.calibration import Statistics

ANSWER_TOKENS = 64
BATCH = 16


def calibrate(
    source: str, target: str, out: str | Path | None = None, *, prompts: str | Path | None = None, answer_tokens: int = ANSWER_TOKENS, device: str = "auto",
    answers: Answers | None = None, force: bool = False, told: Callable[[int, int], None] | None = None,
) -> "Statistics":  # fmt: skip
    """Run the target over prompts and its own greedy answers, and collect what `convert --to 3.1` needs; written to `out` where one is given.

    Raises Unreadable without torch, the device or the target's weights, Refused and Usage as `convert` does.
    """
    from eaglectl.acceptance.prompts import builtin_prompts, read_prompts
    from eaglectl.checkpoint.writer import check_free
    from eaglectl.conversion.calibration import write_statistics

    if out is not None:
        check_free(Path(out), force=force)
    chosen = read_prompts(Path(prompts)) if prompts is not None else builtin_prompts()
    found = collected(source, target, chosen, answer_tokens=answer_tokens, device=device, answers=answers, told=told)
    if out is not None:
        write_statistics(found, Path(out), force=force)
    return found


def collected(
    source: str, target: str, prompts: Sequence["Prompt"], *, answer_tokens: int, device: str, answers: Answers | None, told: Callable[[int, int], None] | None
) -> "Statistics":  # fmt: skip
    """Statistics over `prompts`; three passes of the target: its answers, the sizes, the matrices."""
    from eaglectl.acceptance.job import Job
    from eaglectl.acceptance.reference_engine import tokenise
    from eaglectl.conversion.calibration import Matrices, Statistics, drafter_digest, target_digest

    try:
        from eaglectl.reference import target as targets
        from eaglectl.reference.collecting import collect_moments, collect_sizes
        from eaglectl.reference.loading import load_drafter
        from eaglectl.reference.speculation import Settings, Speculation
    except ImportError:
        raise Unreadable(
            "calibrating runs the target and needs torch and transformers; install eaglectl's torch extra: pip install '.[torch]' in a checkout"
        ) from None
    source, folder = on_disk(source), Path(on_disk(target))
    if not folder.is_dir():
        raise Unreadable(f"--target {target}: calibrating runs the target, so it must be a folder with its weights")
    original = open_folder(source)
    checkpoint = read_checkpoint(original)
    meant = read_drafter(checkpoint, answers or Answers(), open_target(str(folder)))
    if meant.aux.boundaries is None:
        raise Usage("the trained aux layers are not known; pass --aux-layers")
    if meant.quantisation is not None:
        raise Refused("a quantised drafter is not run here; calibrate with the unquantised one")
    total, done = 3 * len(prompts), [0]

    def count(more: int) -> None:
        done[0] += more
        if told:
            told(done[0], total)

    with tempfile.TemporaryDirectory(prefix="eaglectl-") as name:
        convert(source, Path(name) / "drafter", target=str(folder), answers=answers, link=True)
        placed, dtype = targets.choose_device(device)
        model = targets.load_target(folder, meant.aux.boundaries, dtype=dtype, device=placed)
        drafter = load_drafter(
            Path(name) / "drafter", meant, dtype=dtype, device="cuda" if placed == "auto" else placed
        )
        job = Job(Path(name) / "drafter", meant, folder, tuple(prompts), 1, answer_tokens)
        texts = sorted(tokenise(job, model.model.config), key=len)
        batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
        whole = []
        for batch in batches:
            answered = Speculation(model, None, Settings(1, answer_tokens)).run(batch)
            whole.append([[*text, *found.tokens] for text, found in zip(batch, answered, strict=True)])
            count(len(batch))
        sizes = collect_sizes(model, drafter, whole, count)
        if not all(map(math.isfinite, (*sizes.rms, sizes.sigma))):
            raise Refused(
                f"the states of drafter and target are not finite; see `eaglectl validate {source}` for NaN or infinite weights"
            )
        moments = collect_moments(model, drafter, sizes.rms, whole, count)
    digests = {
        "drafter": drafter_digest(checkpoint, meant), "target": target_digest(FolderSource(folder)),
        "prompts": hashlib.sha256("".join(map(prompt_digest, prompts)).encode()).hexdigest(),
    }  # fmt: skip
    return Statistics(
        digests, tuple(prompt_digest(prompt) for prompt in prompts), meant.aux.boundaries, float(meant.settings["rms_norm_eps"]), moments.tokens, sizes.rms,
        sizes.spread, sizes.sigma, meant.norms.norm_before_residual, Matrices(moments.gram.cpu().numpy(), moments.cross.cpu().numpy()),
    )  # fmt: skip


def prompt_digest(prompt: "Prompt") -> str:
    """A name for one prompt, so that a gate can keep to others than those calibrated on."""
    return hashlib.sha256(prompt.text.encode()).hexdigest()[:16]
