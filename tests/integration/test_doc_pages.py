"""The Python blocks of the readme and of the pages in docs: names exist, and what can run here runs."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import timm
import torch
from PIL import Image
from torch import Tensor, nn

import mhex
from mhex.bundle import Bundle
from mhex.inputs.preprocess import Preprocess
from mhex.zoo.shipped import WEIGHTS
from support.models import enliven
from support.suites import write_pets
from support.zoo_models import write_zoo

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SIDE, CLASSES, COUNT = 32, 8, 4
ELSEWHERE = {
    ("bench.md", 0): "a suite of hours, on a GPU, with data sets that do not travel",
    ("train.md", 0): "reads the folder of a training run; tests/unit/lab/train makes some",
    ("train.md", 1): "trains a network on a data set that does not travel",
}


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


CASES = [pytest.param(page, place, id=f"{page.stem}-{place}") for page in PAGES for place in range(len(blocks(page)))]


@pytest.mark.parametrize(("page", "place"), CASES)
def test_names_exist(page: Path, place: int) -> None:
    tree = ast.parse(blocks(page)[place])
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            exec(compile(ast.Module([node], []), page.name, "exec"), {})
        chain = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        if re.fullmatch(r"mhex(\.\w+)+", chain):
            thing: Any = mhex
            for name in chain.split(".")[1:]:
                assert hasattr(thing, name), f"{chain} does not exist"
                thing = getattr(thing, name)


def vit(classes: int = CLASSES) -> nn.Module:
    small = {"img_size": SIDE, "patch_size": 8, "depth": 2, "embed_dim": 16, "num_heads": 2, "num_classes": classes}
    return enliven(CREATE("vit_tiny_patch16_224", **small)).eval()


CREATE: Callable[..., nn.Module] = timm.create_model


def create(name: str, pretrained: bool = False, **arguments: Any) -> nn.Module:
    return vit(arguments["num_classes"]) if pretrained else CREATE(name, **arguments)


def preprocess(photo: Any) -> Tensor:
    return torch.zeros(3, SIDE, SIDE) + photo.convert("L").getpixel((0, 0)) / 255


class Loader:
    """Labelled batches."""

    batch_size = COUNT

    def __iter__(self) -> Any:
        return iter([(images(seed), labels()) for seed in range(4)])

    def __len__(self) -> int:
        return 4


def images(seed: int = 0) -> Tensor:
    return torch.rand(COUNT, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))


def labels() -> Tensor:
    return torch.arange(COUNT) % CLASSES


def names_of(page: Path, place: int) -> dict[str, Any]:
    """What a block takes for granted."""
    model = timm.create_model("test_resnet", num_classes=CLASSES) if page.stem in ("heads", "saliency") else vit()
    masks = torch.zeros(COUNT, SIDE, SIDE).long()
    masks[:, 8:20, 8:20] = 1
    bundle = Bundle("pets", model, preprocess)
    names: dict[str, Any] = {
        "mhex": mhex,
        "torch": torch,
        "timm": timm,
        "model": model,
        "pets": bundle,
        "bundle": bundle,
    }
    names |= {"labels": labels(), "masks": masks, "num_classes": CLASSES, "options": {}, "methods": ["gae", "rollout"]}
    names |= {name: images() for name in ("images", "x", "inputs", "photos")}
    names |= {name: Loader() for name in ("loader", "test_loader", "other_loader", "calibration_loader")}
    names |= {"data": {"inputs": images(), "label": labels(), "mask": masks}, "metrics": ["deletion", "insertion"]}
    names |= {"optimizer": torch.optim.SGD(model.parameters(), 0.01), "drops": torch.linspace(0, 1, 4 * COUNT)}
    names |= {"photo": Image.new("RGB", (40, 30), "red"), "striped_images": images(1), "held_out_photos": images(2)}
    names |= {"backbone": vit(0), "trained": timm.create_model("test_resnet", num_classes=CLASSES)}
    if page.stem == "explain":
        made = {"attention": mhex.explain(model, images(), "attention"), "cdam": mhex.explain(model, images(), "cdam")}
        names |= {**made, "dots": mhex.Concept.from_examples(backbone := vit(0), images(3), name="dots")}
        names |= {"backbone": backbone}
        names |= {"model": vit(2) if place == 2 else model, "Image": Image}
        names["bundle"] = Bundle("scans", model, Preprocess(SIDE, SIDE, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2)))
        names["slices"] = torch.randint(-1000, 1000, (COUNT, 3, SIDE, SIDE), dtype=torch.int16)
    if page.stem == "evaluate":
        names |= {"maps": mhex.explain(model, images(), "gae").scores, "classes": labels()}
        judged = mhex.evaluate(model, names["data"], ["gae", "rollout"], ["deletion"])
        names |= {"report": judged, "other": judged} if place else {"other": _other(names["data"])}
        if place == 2:
            names["metrics"] = [mhex.metrics.get_metric("deletion").metric()]
    if page.stem == "heads" and place == 7:  # names a block of a larger network
        model = names["model"] = timm.create_model("resnet18", num_classes=CLASSES)
    if page.stem == "heads" and place:
        names["scaffold"] = mhex.attach(model, CLASSES)
        model.eval()(images())  # which shows the order of the blocks
        if place == 1:  # attaches heads itself
            names["model"] = timm.create_model("test_resnet", num_classes=CLASSES)
    if page.stem == "truth":
        model.head.bias.data[1] += 9  # the label of the item is 1, and samples with a wrong answer do not count
        scan, lesion, ruler = images()[2], masks[0].bool(), masks[0].bool().roll(12, 1)
        names |= {"scan": scan, "lesion": lesion, "scan_without_lesion": scan.masked_fill(lesion, 0.0)}
        names |= {"ruler": ruler, "scan_without_ruler": scan.masked_fill(ruler, 0.0)}
    if page.stem in ("heads", "README"):
        import torchvision

        names["torchvision"] = torchvision
    return names


def _other(data: Any) -> mhex.Report:
    return mhex.evaluate(mhex.load("zoo:pets-vit"), data, ["gae"], ["deletion"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("page", "place"), CASES)
def test_blocks_run(page: Path, place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := ELSEWHERE.get((page.name, place)):
        pytest.skip(reason)
    monkeypatch.chdir(tmp_path)
    zoo = write_zoo(tmp_path / "zoo")
    for path in WEIGHTS.glob("truth-mark-vit.*"):  # tasks with known evidence are for networks that learned them
        shutil.copy(path, zoo)
    monkeypatch.setattr("mhex.zoo.shipped.WEIGHTS", zoo)
    monkeypatch.setenv("MHEX_DATA", str(write_pets(tmp_path)))
    reviews = [
        {"text": "a film", "label": 1, "evidence": [[0, 1]], "split": split} for split in ("train", "val", "test")
    ]
    pq.write_table(pa.Table.from_pylist(reviews), tmp_path / "movies.parquet")
    (zoo / "blood-vit.json").write_bytes((zoo / "pets-vit.json").read_bytes())
    (zoo / "blood-vit.safetensors").write_bytes((zoo / "pets-vit.safetensors").read_bytes())
    Image.new("RGB", (40, 30), "red").save("cat.jpg")
    Image.fromarray((torch.arange(1200).reshape(30, 40) * 3).to(torch.uint16).numpy()).save("scan.png")
    for kind in ("cat", "dog"):
        for folder in ("photos", "masks"):
            (tmp_path / folder / kind).mkdir(parents=True)
            Image.new("L", (40, 30), 255).save(tmp_path / folder / kind / "a.png")
    Path("mine.csv").write_text("image,label,split\ncat.jpg,cat,test\n")
    names = names_of(page, place)
    # Nothing is fetched: a pretrained network is one with random weights here.
    monkeypatch.setattr(timm, "create_model", create)
    # The readme says in a comment that the model is called between these two lines.
    block = blocks(page)[place].replace("loss = scaffold.loss(labels)", "model(images); loss = scaffold.loss(labels)")
    exec("from mhex.lab.datasets import load_csv, load_folder\n" + block, names)
    targets = [target for node in ast.parse(block).body if isinstance(node, ast.Assign) for target in node.targets]
    results = {target.id: names[target.id] for target in targets if isinstance(target, ast.Name)}
    assert [name for name, value in results.items() if value is None] == []
