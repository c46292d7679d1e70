"""The noise of Smooth CDAM for the suites `cdam` and `cdam-single`, chosen on training photos of pets.

python benchmarks/cdam_sigma.py --device cuda        prints a table for each model, with the level to take

As in the paper, the level with the highest fidelity on 200 photos that nothing is judged on. Needs the pets data set
(`MHEX_DATA`).
"""

from __future__ import annotations

import argparse

import mhex
from mhex.lab.datasets import load_pets

MODELS = ("zoo:pets-vit-simclr-probe", "zoo:pets-vit")
SIGMAS = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)


def main() -> None:
    """Try all levels on each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--model", nargs="*", choices=MODELS, default=MODELS)
    wanted = parser.parse_args()
    photos = [item["image"] for item in load_pets("trainval", limit=wanted.images).items()]
    for name in wanted.model:
        bundle = mhex.load(name)
        bundle.model.to(wanted.device)
        study = mhex.tuning.tune_sigma(bundle, photos, SIGMAS, batch_size=50)
        print(f"{name}, {len(photos)} training photos: sigma {study.sigma:g}\n\n{study.table()}\n", flush=True)


if __name__ == "__main__":
    main()
