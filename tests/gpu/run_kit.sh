#!/usr/bin/env bash
# Installs the parts of `make gpu-kit` that are in KIT into WORK and runs the tests there, without a network:
#     bash run_kit.sh KIT [WORK [words of python -m tests.gpu]]
# KIT is the folder of the parts, or one part. Where they come one after another: INSTALL_ONLY=1 for all but the last.
# PYTHON (python3) has torch and transformers. OUT (WORK/results) then has the table.
set -euo pipefail
kit=$(cd "$1" && pwd)
mkdir -p "${2:-gpu-work}"
work=$(cd "${2:-gpu-work}" && pwd)
python=${PYTHON:-python3}
site=$work/site
mkdir -p "$site" "$work/project" "$work/real/packages"

files() { find "$kit" -name "$1" | sort; }

mapfile -t wheels < <(files '*.whl')
if [ "${#wheels[@]}" -gt 0 ]; then
    "$python" -m pip --disable-pip-version-check install --quiet --no-index --no-deps --no-compile --upgrade --target "$site" "${wheels[@]}"
fi
# by Python, as a CUDA image may have no xz
for archive in $(files 'project-*.tar.xz'); do "$python" -m tarfile -e "$archive" "$work/project"; done
for archive in $(files 'vllm-*.tar.xz'); do "$python" -m tarfile -e "$archive" "$site"; done
for piece in $(files '*.gguf*'); do cp "$piece" "$work/real"; done
for first in "$work"/real/*.1-of-*; do
    [ -e "$first" ] || continue
    whole=${first%.1-of-*} count=${first##*-of-}
    [ "$(ls "$whole".*-of-"$count" | wc -l)" -eq "$count" ] || continue
    for number in $(seq "$count"); do cat "$whole.$number-of-$count"; done > "$whole.whole"
    rm "$whole".*-of-"$count"
    mv "$whole.whole" "$whole"
done
[ -z "${INSTALL_ONLY:-}" ] || exit 0

# FlashInfer is left out of the kit; no package index and no Hub is asked
export VLLM_USE_FLASHINFER_SAMPLER=0 HF_HUB_OFFLINE=1 PIP_NO_INDEX=1
export EAGLECTL_REAL=$work/real SITE=$site
exec bash "$work/project/tests/gpu/run.sh" --out "${OUT:-$work/results}" "${@:3}"
