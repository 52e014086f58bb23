#!/usr/bin/env bash
# The tests on a GPU, without the network: `bash tests/gpu/run.sh` in a checkout with the folder that `make gpu-wheels`
# makes, where PYTHON (python3) has torch and transformers. Other words are pytest's.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
if ! "$python" -c "import httpx2, huggingface_hub, hypothesis, jsonschema, msgspec, pytest, typer" 2>/dev/null; then
    "$python" -m venv --system-site-packages .venv-gpu
    python=.venv-gpu/bin/python
    "$python" -m pip install --quiet --no-index --find-links gpu-wheels --requirement tests/gpu/requirements.txt
fi
PYTHONPATH=$PWD exec "$python" -m pytest -p no:cacheprovider -o filterwarnings=default -m "slow or not slow" -rs \
    tests/gpu "$@"
