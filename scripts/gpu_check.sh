#!/usr/bin/env bash
# Runs the tests marked `gpu` and the bench on CUDA, in under 6 minutes, without a network.
#
# Needs no installation of kdflow, only Python with the packages it checks for; so it also runs where torch and
# transformers are older than the lock (torch 2.11, transformers 5.17). PYTHON names the interpreter.
# Exit code: 0 all passed, 1 a test or the bench failed, 2 a package is missing, 3 there is no CUDA device.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
exec < /dev/null

python=${PYTHON:-.venv/bin/python}
[[ -x $python ]] || python=python3
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export HF_HUB_OFFLINE=1 KDFLOW_TRACKING=off
output=${OUTPUT:-results}

"$python" - <<'PYTHON' || exit
import importlib.util
import sys

needed = {"torch": "torch", "transformers": "transformers", "accelerate": "accelerate", "pyarrow": "pyarrow",
          "pydantic": "pydantic", "ruamel.yaml": "ruamel.yaml", "jaxtyping": "jaxtyping", "beartype": "beartype",
          "safetensors": "safetensors", "psutil": "psutil", "rich": "rich", "filelock": "filelock", "scipy": "scipy",
          "sklearn": "scikit-learn", "pytest": "pytest", "pytest_timeout": "pytest-timeout"}


def is_there(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a parent, e.g. ruamel
        return False


missing = [package for module, package in needed.items() if not is_there(module)]
if missing:
    print(f"gpu-check: {sys.executable} lacks {', '.join(missing)}; install them, or name another PYTHON", file=sys.stderr)
    sys.exit(2)

import torch
import transformers

if not torch.cuda.is_available():
    print(f"gpu-check: torch {torch.__version__} sees no CUDA device; nothing was checked", file=sys.stderr)
    sys.exit(3)
print(f"gpu-check: {torch.cuda.get_device_name()}, Python {sys.version.split()[0]}, torch {torch.__version__}, "
      f"transformers {transformers.__version__}")
PYTHON

# Only the files that hold such tests: others import what a borrowed machine may lack.
mapfile -t files < <(grep -rlE 'mark\.gpu\b' tests --include='test_*.py' --exclude=test_gpu_check.py)
failed=0
"$python" -m pytest "${files[@]}" -q -m gpu -p no:cacheprovider -o addopts="-ra --strict-markers" || failed=1
"$python" -m kdcore.bench --quick --device cuda --output "$output/bench-cuda.json" || failed=1
if ((failed)); then
    echo "gpu-check: FAILED" >&2
    exit 1
fi
echo "gpu-check: passed; figures in $output/bench-cuda.json"
