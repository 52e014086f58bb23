#!/usr/bin/env bash
# The tests on a GPU, without the network: `bash tests/gpu/run.sh [PART...]` in a checkout, where PYTHON (python3) has
# torch and transformers. What it lacks beside them is installed into SITE (.gpu-site) from WHEELS (gpu-kit), a folder
# that `make gpu-kit` made. Other words are those of `python -m tests.gpu`.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
site=${SITE:-$PWD/.gpu-site}
# no virtual environment: one made of a python that is in one itself does not see its torch
export PYTHONPATH=$site:$PWD${PYTHONPATH:+:$PYTHONPATH}
lacks() {
    "$python" - <<'END'
from importlib.util import find_spec
names = ("blake3", "httpx2", "huggingface_hub", "hypothesis", "jsonschema", "msgspec", "pytest", "typer")
print(*(name for name in names if find_spec(name) is None))
END
}
if [ -n "$(lacks)" ]; then
    mapfile -t wheels < <(find "${WHEELS:-gpu-kit}" -name '*.whl' 2>/dev/null)
    [ "${#wheels[@]}" -eq 0 ] || "$python" -m pip --disable-pip-version-check install --quiet --no-index --no-deps \
        --no-compile --upgrade --target "$site" "${wheels[@]}"
fi
if [ -n "$(lacks)" ]; then
    echo "$python lacks $(lacks): run \`make gpu-kit\` where there is a network and put the folder gpu-kit here" >&2
    exit 3
fi
exec "$python" -m tests.gpu "$@"
