"""How often `mhex.recommend` names a method that a full benchmark of the same model does not rate worse than its best.

python benchmarks/recommend.py                                           both parts, on pets-vit
python benchmarks/recommend.py --full-only --device cuda --images 500    the benchmark alone, where there is a GPU
python benchmarks/recommend.py --seeds-only --budget 60                 the races alone, once the benchmark is there

Every method that serves the model is judged on `--images` test photos or texts (`--slow-images` for methods of many
passes), by `mhex.evaluate` with the metric `removal`; then the race is run with each seed on samples that the benchmark
has not seen. All is kept in `--out`, in a folder of each model: `full` holds the rows, which may be made on another
machine, and `seed-N.json` the races, so that what was broken off goes on. `--clock cpu` counts seconds of the processor
instead of those of the wall, for machines that others use too. Needs the data (`MHEX_DATA`). The page is made of all
models that are in `--out`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import mhex
from mhex.errors import ArgumentError, CaptureError, MhexWarning, MissingExtraError, UnsupportedModelError
from mhex.judge import report as about
from mhex.lab.datasets import data_entry
from mhex.methods import all_methods
from recommend_page import page
from recommend_rating import Full, judged

MODELS = {
    **{"pets-vit": "pets", "blood-vit": "blood", "cifar10-vit": "cifar10", "pets-resnet10t": "pets"},
    "agnews-mhex-minilm": "ag_news",
}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
SLOW = ("attention-flow", "integrated-gradients", "occlusion", "rise", "scorecam", "shap", "smoothgrad", "vit-cx")
ORDER = 2024  # seed of the order of photos
_RACES = 10  # seeds, each with photos of its own
_UNSEEN = 100  # samples of a race, at most


def main() -> None:
    """Measure, print, and write the page."""
    arguments = _arguments()
    warnings.simplefilter("ignore", MhexWarning)
    folder = arguments.out / arguments.model
    bundle = mhex.load(f"zoo:{arguments.model}")
    bundle.model.to(arguments.device)
    items = data_entry(MODELS[arguments.model]).items()
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(ORDER)).tolist()
    if not arguments.seeds_only:
        full(bundle, [items[place] for place in order[: arguments.images]], arguments, folder / "full")
    if not arguments.full_only:
        benchmark = Full.load(folder / "full")
        rest = order[benchmark.images :]
        for seed in arguments.seeds:
            unseen = [items[place] for place in rest[seed::_RACES][:_UNSEEN]]
            answer = race(bundle, unseen, seed, arguments, folder)
            print(f"seed {seed}: {judged(benchmark, answer).words}", flush=True)
    text = page(arguments.out, [name for name in MODELS if (arguments.out / name / "full").is_dir()])
    print(text)
    if arguments.page is not None:
        arguments.page.write_text(text, encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(MODELS), default="pets-vit")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=60, help="of the full benchmark")
    parser.add_argument("--slow-images", type=int, default=12, help="of methods of many passes")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--without", nargs="*", default=[], help="methods that the full benchmark does not judge")
    parser.add_argument("--budget", default="60")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(_RACES)))
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--out", type=Path, default=Path("out/recommend"))
    parser.add_argument("--page", type=Path, help="where the page is written, such as docs/results/recommend.md")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--full-only", action="store_true", help="no races")
    only.add_argument("--seeds-only", action="store_true", help="with a full benchmark that is there")
    return parser.parse_args()


def full(bundle: Any, data: list[Any], arguments: argparse.Namespace, out: Path) -> None:
    """Judge every method, one after the other; rows that are there are not made again."""
    for name in [name for name in all_methods() if name not in arguments.without]:
        limit = arguments.slow_images if name in SLOW else arguments.images
        if not limit:
            continue
        given: Any = {"limit": limit, "batch_size": arguments.batch_size, "out": out}
        started = time.perf_counter()
        try:
            mhex.evaluate(bundle, data, [name], ["removal"], **given)
        except (UnsupportedModelError, CaptureError, MissingExtraError) as error:
            print(f"{name} is left out: {error}", flush=True)
            continue
        print(f"{name}: {limit} photos, {time.perf_counter() - started:.0f} s", flush=True)


def race(bundle: Any, data: list[Any], seed: int, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The answer of a race, from its file where there is one of the same budget."""
    file = folder / f"seed-{seed}.json"
    if file.exists():
        answer: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if answer["asked"] != arguments.budget:
            words = f"Expected races with a budget of {arguments.budget}, but {file} has {answer['asked']}."
            raise ArgumentError(words)
        return answer
    advice = mhex.recommend(bundle, data, arguments.budget, seed=seed, clock=CLOCKS[arguments.clock])
    command = shlex.join(["python", "benchmarks/recommend.py", *sys.argv[1:]])
    beside = {"seed": seed, "asked": arguments.budget, "clock": arguments.clock, "photos": len(data)}
    answer = {**advice.as_dict(), **beside, "command": command, "versions": about.versions()}
    (folder / f"seed-{seed}.txt").write_text(f"{advice}\n", encoding="utf-8")
    file.write_text(json.dumps(answer, indent=2), encoding="utf-8")
    return answer


if __name__ == "__main__":
    main()
