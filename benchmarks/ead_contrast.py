"""Is the effective average drop (EAD) a matter of contrast? Maps of blood cells, and powers of the same maps.

python benchmarks/ead_contrast.py                             128 test images, judged by the explained network
python benchmarks/ead_contrast.py --evaluator zoo:blood-vit   judged by another network
python benchmarks/ead_contrast.py --model zoo:pets-mhex-resnet10t --data pets --evaluator zoo:pets-vit

A power of a map from 0 to 1 keeps the order of its pixels: it says the same of every two of them. EAD reads how
many values lie above 0.2 and which lie above 0.5, and so it changes. The last column has no threshold on values: the
quarter of the pixels with the highest values is removed, whatever these are, which is the area that EAD rewards most.
"""

import argparse

import torch
from torch import Tensor

import mhex
from mhex.lab.datasets import data_entry
from mhex.lab.suites.run import evaluator_of
from mhex.metrics.effective_average_drop import effective_average_drop
from mhex.perturb import MaskedPass, Subject, minmax, ranks
from study_page import interval_of

MODEL, DATA, AREA = "zoo:blood-mhex-resnet18", "blood", 0.25
METHODS = ("gradcam", "layercam", "mhex")
POWERS = {"": 1, ", squared": 2, ", fourth power": 4}
HEADINGS = ("map", "EAD", "above 0.2", "removed (above 0.5)", "drop, exactly 25 % removed")


def highest(maps: Tensor, ids: list[int], area: float = AREA) -> Tensor:
    """Maps (B, H, W) that are 1 at the share of pixels with the highest values, 0 elsewhere; ties by number."""
    places = ranks(maps.flatten(1), ids)
    return (places < round(area * places.shape[1])).to(maps).view_as(maps)


def numbers(subject: Subject, maps: Tensor) -> Tensor:
    """EAD, the two shares of pixels, and the drop with a quarter removed, of maps (B, H, W) from 0 to 1: (B, 4)."""
    hide = MaskedPass()
    shares = [(maps.flatten(1) > level).double().mean(1) for level in (0.2, 0.5)]
    # Of a map of 0 and 1 the weight of the area is that of a quarter, which is 1: its EAD is the drop.
    drops = [effective_average_drop(hide.ask(subject, one), "label") for one in (maps, highest(maps, subject.ids))]
    return torch.stack([drops[0], *shares, drops[1]], 1)


def main(name: str, data: str, images: int, evaluator: str | None, batch: int = 32) -> None:
    """Print a table in Markdown, and the difference of Grad-CAM and heads by both rules."""
    bundle = mhex.load(name)
    model = bundle.model if evaluator is None else evaluator_of(bundle, mhex.load(evaluator))
    items = data_entry(data).items("test", limit=images)
    rows: dict[str, list[Tensor]] = {}
    for start in range(0, len(items), batch):
        part = [items[place] for place in range(start, min(start + batch, len(items)))]
        photos, labels = [item["image"] for item in part], torch.tensor([int(item["label"]) for item in part])
        ids = list(range(start, start + len(part)))
        subject = Subject(model, photos, labels, ids, preprocess=bundle.preprocess)
        for method in METHODS:
            maps = minmax(mhex.explain(bundle, photos, method, labels).map())
            for words, power in POWERS.items():
                rows.setdefault(f"{method}{words}", []).append(numbers(subject, maps**power))
    print(f"{len(items)} test images of {data}, {name}, label, judged by {evaluator or 'itself'}\n")
    print(f"| {' | '.join(HEADINGS)} |\n{'|---' * len(HEADINGS)}|")
    table = {name: torch.cat(parts) for name, parts in rows.items()}
    for view, values in table.items():
        print(f"| {view} | {' | '.join(str(interval_of(column)) for column in values.unbind(1))} |")
    pairs = [("EAD", 0, f"gradcam{words}") for words in POWERS] + [("drop, exactly 25 % removed", 3, "gradcam")]
    for words, column, rival in pairs:
        print(f"\n{words}: mhex less {rival} {interval_of(table['mhex'][:, column] - table[rival][:, column])}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=MODEL, help=f"The explained network, with heads ({MODEL}).")
    parser.add_argument("--data", default=DATA, help=f"Data set of the images ({DATA}).")
    parser.add_argument("--images", type=int, default=128, help="Test images, evenly spaced (128).")
    parser.add_argument("--evaluator", default=None, help="Another network whose probabilities are read.")
    arguments = parser.parse_args()
    main(arguments.model, arguments.data, arguments.images, arguments.evaluator)
