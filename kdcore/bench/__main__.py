"""`make bench`: measure what methods cost and what rows cost, print tables, write JSON and Markdown.

    python -m kdcore.bench [--quick] [--device cpu|cuda] [--size small|base|tiny] [--methods NAME ...]
                           [--sections methods own general selector live depth rows] [--output results/bench.json]

On a CPU the pair is as large as all-MiniLM-L6-v2 and half of it, on CUDA as BERT-base and half of it; weights and
tokens are random, so nothing is fetched. All of it takes a quarter of an hour on two quiet cores. `--quick` takes fewer
rows and rounds: it shows that all works, not how fast.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kdcore.environment import prepare_environment
from kdcore.errors import UserError

SECTIONS = {
    "methods": "cost of each method with stored teacher features",
    "own": "what each of them adds to a step, timed alone: sure to a tenth, also beside other work",
    "general": "steps of general methods, whose teacher is live",
    "selector": "what training a selector of knowledge costs over the distillation steps in it",
    "live": "the same with a live teacher",
    "depth": "how the cost grows with the depth of the teacher",
    "rows": "memory and disk by number of rows",
}
COMPARED_BY_DEPTH = ("vanilla_kd", "pkd", "alp_kd", "codir", "rail_kd_l", "rail_kd_c")
"""RAIL-KD's comparison set: its claim is that its own cost does not grow where ALP-KD's and CoDIR's does."""


def main() -> int:
    options = _options()
    prepare_environment()
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch looks
    try:
        chosen = _chosen(options.methods)
    except UserError as error:
        print(f"bench: {error}", file=sys.stderr)
        return error.exit_code
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print("bench: there is no CUDA device; leave --device out to measure the CPU", file=sys.stderr)
        return 2
    from kdcore.bench import report

    started = time.monotonic()
    cuda = torch.cuda.is_available()
    size = options.size or ("base" if cuda else "tiny" if options.quick else "small")
    machine = _machine(torch)
    timing = _timing(chosen, set(options.sections) & {"methods", "live", "depth"}, options.quick, size, cuda)
    own_part = _own_part(chosen, options.quick, size) if "own" in options.sections else None
    live_step = _live_step(options.quick, size) if "general" in options.sections else None
    selector = _selector(options.quick, size) if "selector" in options.sections else None
    rows = _rows(options.quick, cuda) if "rows" in options.sections else []
    content = report.merge(machine, options.quick, size, timing, own_part, live_step, selector, rows) | {
        "bench_seconds": time.monotonic() - started}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    text = options.output.with_suffix(".md")
    text.write_text(report.markdown(content), encoding="utf-8")
    report.show(content)
    print(f"\nwritten to {options.output} and {text} after {content['bench_seconds']:.0f} s")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kdcore.bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: CUDA if there is any")
    parser.add_argument("--size", choices=("tiny", "small", "base"), help="of the models; default by device")
    parser.add_argument("--sections", nargs="+", choices=tuple(SECTIONS), default=tuple(SECTIONS),
                        help="default: all. " + "; ".join(f"{name}: {what}" for name, what in SECTIONS.items()))
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--output", type=Path, default=Path("results/bench.json"),
                        help="the tables go beside it, as Markdown")
    return parser.parse_args()


def _chosen(named: list[str] | None) -> tuple[str, ...]:
    """The methods to compare with fine-tuning; raises UserError for one that does not exist."""
    from kdcore import methods

    for name in named or ():
        methods.load(name)
    return tuple(name for name in named or methods.names() if name != "finetune")


def _timing(chosen: tuple[str, ...], sections: set[str], quick: bool, size: str, cuda: bool) -> dict[str, Any] | None:
    """Times the methods; None when no section wants it."""
    from kdcore.bench.models import SIZES
    from kdcore.bench.timing import Work

    if not sections:
        return None
    deep = tuple(name for name in COMPARED_BY_DEPTH if name in chosen) if "depth" in sections else ()
    if quick:
        rows, steps, rounds, builds = (1_000, 20, 3, 1) if cuda else (128, 3, 2, 1)
    else:
        rows, steps, rounds, builds = (1_000, 31, 8, 3) if cuda else (1_000, 11, 6, 3)
    work = Work(size, rows, steps, rounds, builds, methods=chosen if sections & {"methods", "live"} else deep,
                live=chosen if "live" in sections else (), deep=deep, depths=SIZES[size].depths)
    return _measure("timing", work, f"{len(work.methods)} methods, {size} models", {})


def _own_part(chosen: tuple[str, ...], quick: bool, size: str) -> dict[str, Any]:
    from kdcore.bench.own_part import Work

    rows, steps, rounds = (128, 2, 1) if quick else (1_000, 20, 3)
    return _measure("own_part", Work(size, rows, steps, rounds, chosen), f"own parts, {size} models", {})


def _live_step(quick: bool, size: str) -> dict[str, Any]:
    from kdcore import general
    from kdcore.bench.live_step import Work

    rows, tokens, steps, rounds = (2, 16, 2, 1) if quick else (8, 128, 10, 2)
    return _measure("live_step", Work(size, rows, tokens, steps, rounds, general.names()),
                    f"general methods, {size} models", {})


def _selector(quick: bool, size: str) -> dict[str, Any]:
    from kdcore.bench.selector import Work

    rows, steps, rounds = (128, 2, 1) if quick else (1_024, 20, 3)
    return _measure("selector", Work(size, rows, steps, rounds), f"training a selector, {size} models", {})


def _rows(quick: bool, cuda: bool) -> list[dict[str, Any]]:
    from kdcore.bench.rows import FEW_KERNELS, Work

    numbers = (1_000, 10_000, 50_000) if not quick else (1_000, 10_000) if cuda else (128, 512)
    return [_measure("rows", Work(number, "slim", steps=5 if quick else 30), f"{number:,} rows", FEW_KERNELS)
            for number in numbers]


def _measure(module: str, work: Any, what: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run one measurement in a process of its own."""
    print(f"bench: {what} ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="kdflow-bench-") as folder:
        output = Path(folder) / "result.json"
        subprocess.run([sys.executable, "-m", f"kdcore.bench.{module}", json.dumps(asdict(work)), folder, str(output)],
                       check=True, stdin=subprocess.DEVNULL, env=os.environ | environment)
        result: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
        return result


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
