"""`make bench`: measure every size in a process of its own, print a table, write one JSON file.

    python -m kdcore.bench [--quick] [--device cpu|cuda] [--size small|base|tiny] [--output results/bench.json]

On a CPU the pair is as large as all-MiniLM-L6-v2 and half of it, on CUDA as BERT-base and half of it; weights and
tokens are random, so nothing is fetched. `--quick` takes fewer rows and rounds: it shows that all works, not how fast.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kdcore.environment import prepare_environment

COMPARED_AT_ALL_SIZES = ("rail_kd_l",)


def main() -> int:
    options = _options()
    prepare_environment()
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch looks
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print("bench: there is no CUDA device; leave --device out to measure the CPU", file=sys.stderr)
        return 2
    from kdcore.bench import report

    started = time.monotonic()
    sizes = [_measure(work) for work in _plan(options.quick, options.size, torch.cuda.is_available())]
    content = report.merge(_machine(torch), options.quick, sizes) | {"bench_seconds": time.monotonic() - started}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    report.show(content)
    print(f"\nwritten to {options.output} after {content['bench_seconds']:.0f} s")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kdcore.bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: CUDA if there is any")
    parser.add_argument("--size", choices=("tiny", "small", "base"), help="of the models; default by device")
    parser.add_argument("--output", type=Path, default=Path("results/bench.json"))
    return parser.parse_args()


def _plan(quick: bool, size: str | None, cuda: bool) -> "list[Any]":
    """What to measure: all methods at the smallest size, RAIL at all, to see what grows with the rows."""
    from kdcore import methods
    from kdcore.bench.size import BASELINE, Work

    others = tuple(name for name in methods.names() if name != BASELINE)
    if quick:
        rows = [1_000, 10_000] if cuda else [128, 512]
        steps, rounds = (20, 3) if cuda else (3, 2)
        size = size or ("base" if cuda else "tiny")
    else:
        rows = [1_000, 10_000, 50_000]
        steps, rounds = (31, 7) if cuda else (15, 6)
        size = size or ("base" if cuda else "small")
    return [Work(n, size, steps, rounds if n == rows[0] else 2, 3 if n == rows[0] else 1,
                 others if n == rows[0] else COMPARED_AT_ALL_SIZES, live=n == rows[0]) for n in rows]


def _measure(work: Any) -> dict[str, Any]:
    print(f"bench: {work.rows:,} rows, {work.size} models ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="kdflow-bench-") as folder:
        output = Path(folder) / "result.json"
        subprocess.run([sys.executable, "-m", "kdcore.bench.size", json.dumps(asdict(work)), folder, str(output)],
                       check=True, stdin=subprocess.DEVNULL)
        return json.loads(output.read_text(encoding="utf-8")) | {"models": work.size}


def _machine(torch: Any) -> dict[str, Any]:
    import transformers

    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "processor": platform.processor() or platform.machine(), "threads": torch.get_num_threads(),
        "python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__,
        "load_average": os.getloadavg()[0],
    }


if __name__ == "__main__":
    sys.exit(main())
