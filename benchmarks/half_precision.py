"""How far maps of half precision agree with those of float32: rank correlations on photos of pets, method by method.

    python benchmarks/half_precision.py [--model zoo:pets-vit] [--photos 24] [--device cuda]

Maps under `torch.autocast` and on weights of bfloat16 are compared with those of the same model in float32, for the
class that it predicts; means and the least of all photos are printed as a table for docs/capture.md.
"""

from __future__ import annotations

import argparse
import copy
import warnings

import torch
from torch import Tensor, nn

import mhex
from mhex.inputs import prepare
from mhex.lab.datasets.catalogue import data_entry
from mhex.methods import all_methods


def ranks(scores: Tensor) -> Tensor:
    """Ranks of the values of each map, (B, N), without their mean."""
    order = scores.flatten(1).double().argsort(1).argsort(1).double()
    return order - order.mean(1, keepdim=True)


def agreement(scores: Tensor, exact: Tensor) -> str:
    """Mean and least rank correlation."""
    a, b = ranks(scores), ranks(exact)
    correlations = (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))
    return f"{correlations.mean():.4f} | {correlations.min():.3f}"


def row(name: str, model: nn.Module, half: nn.Module, x: Tensor) -> str:
    """One line of the table; the reason where a method cannot explain the model."""
    try:
        exact = mhex.explain(model, x, name)
        with torch.autocast(x.device.type, torch.bfloat16):
            cast = mhex.explain(model, x, name, exact.target)
        rounded = mhex.explain(half, x.bfloat16(), name, exact.target)
    except mhex.MhexError as error:
        return f"| `{name}` | {str(error)[:80]} | | | |"
    return f"| `{name}` | {agreement(cast.scores, exact.scores)} | {agreement(rounded.scores, exact.scores)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="zoo:pets-vit")
    parser.add_argument("--photos", type=int, default=24)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # of relevance that is lost, sample after sample
    bundle = mhex.load(arguments.model)
    items = data_entry("pets").items("test", limit=arguments.photos)
    batch = prepare(bundle.model, [item["image"] for item in items], bundle.preprocess).batch
    x = batch.pixels.to(arguments.device)
    model = bundle.model.to(arguments.device).eval()
    half = copy.deepcopy(model).bfloat16()
    print("| method | autocast: mean | least | bfloat16 weights: mean | least |\n|---|---|---|---|---|")
    for method in all_methods().values():
        if method.budget is not None and method.budget[1] != "passes" and method.name != "mhex":
            print(row(method.name, model, half, x), flush=True)


if __name__ == "__main__":
    main()
