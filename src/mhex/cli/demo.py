"""`mhex demo`: the zoo's models on photos and texts, by every method that serves them, on one page."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mhex._files import write_text
from mhex.cli._console import Step, busy, output_folder, say, steps
from mhex.cli._run import MethodResults, explain_by
from mhex.errors import ArgumentError

if TYPE_CHECKING:
    from mhex.bundle import Bundle
    from mhex.explanation import Explanation

MODELS = ("zoo:pets-vit", "zoo:pets-resnet10t")
HEADED = "zoo:pets-mhex-resnet10t"
METHODS = ("mhex", "gradcam", "layercam")
READER = "zoo:agnews-mhex-minilm"
# Made up, so that nobody's text is used; each could stand under two headings.
TEXTS = (
    "The software company Lumenfold bought the football club Harrow Vale, and its engineers now count every pass "
    "with cameras.",
    "Ministers of both countries met the oil companies on Tuesday, and prices fell before the talks had ended.",
)


@dataclass(frozen=True)
class Opinion:
    """The most probable classes of a head, or of the network's classifier, and its accuracy on the test split."""

    name: str
    accuracy: float | None
    favourites: Mapping[str, float]


@dataclass(frozen=True)
class HeadsView:
    """What the heads of one network make of one photo: opinions, the map of each block, and all of them together."""

    bundle: Bundle
    photo: Photo
    opinions: list[Opinion]
    layers: dict[str, Explanation]
    explanations: list[Explanation]

    @property
    def sentence(self) -> str:
        """What the heads say, in one sentence."""
        answers = ", ".join(f"{opinion.name} {next(iter(opinion.favourites))}" for opinion in self.opinions)
        return f"Heads of {self.bundle.name} on the {self.photo.name}: {answers}"


def head_opinions(bundle: Bundle, inputs: Any) -> list[Opinion]:
    """Run a network with heads once on one sample: an opinion per head, first to last, then of its classifier."""
    import torch

    from mhex import Scaffold

    if bundle.class_names is None:
        raise ArgumentError(f"Expected the card of {bundle.name} to name its classes, but it does not.")
    scaffold = Scaffold(bundle.model)
    with torch.inference_mode():
        bundle.model(inputs) if isinstance(inputs, torch.Tensor) else bundle.model(**inputs)
    scores = {**scaffold.head_logits, "the network": scaffold.reading.scores("classifier")}
    measured = bundle.card.get("accuracy", {})
    host = next((value for value in measured.values() if isinstance(value, float)), None)
    accuracies = [*measured.get("heads", [None] * len(scaffold.names)), host]
    return [
        Opinion(name, accuracy, top_classes(logits[0].float().softmax(0).tolist(), bundle.class_names))
        for (name, logits), accuracy in zip(scores.items(), accuracies, strict=True)
    ]


def top_classes(probabilities: Sequence[float], names: Sequence[str], count: int = 3) -> dict[str, float]:
    """The most probable classes, the first one first."""
    shares = dict(zip(names, probabilities, strict=True))
    return {name: shares[name] for name in sorted(shares, key=shares.__getitem__, reverse=True)[:count]}


def look_into(bundle: Bundle, photo: Photo, classes: list[str], step: Step) -> HeadsView:
    """Ask the heads of a network about a photo, for the classes with these names."""
    if bundle.preprocess is None:
        raise ArgumentError(f"Expected a network that reads photos, but {bundle.name} does not.")
    outcome = explain_by(
        bundle,
        photo.image,
        METHODS,
        classes,
        lambda name: step(f"{photo.name}, {bundle.name}: {name}"),
        options={"mhex": {"per_layer": True}},
    )
    combined = outcome.explanations[0]
    opinions = head_opinions(bundle, bundle.preprocess(photo.image)[None])
    return HeadsView(bundle, photo, opinions, combined.by_layer(), outcome.explanations)


@dataclass(frozen=True)
class TextView:
    """What a model makes of one text: opinions of its heads and its classifier, and the scores of the words."""

    bundle: Bundle
    text: str
    opinions: list[Opinion]
    outcome: MethodResults

    @property
    def sentence(self) -> str:
        """The model's opinion in one sentence."""
        shares = ", ".join(f"{100 * share:.0f} % {name}" for name, share in self.opinions[-1].favourites.items())
        return f'{self.bundle.name} on "{" ".join(self.text.split()[:4])} ...": {shares}'


def read_news(bundle: Bundle, text: str, methods: list[str], step: Step) -> TextView:
    """Explain a text for its two most probable classes, by every method that serves the model."""
    if bundle.tokenizer is None:
        raise ArgumentError(f"Expected a model that reads texts, but {bundle.name} does not.")
    outcome = explain_by(
        bundle,
        text,
        methods,
        "top2",
        lambda name: step(f"news, {bundle.name}: {name}"),
        options=quick_options(methods, "text"),
        pass_over=True,
    )
    opinions = head_opinions(bundle, bundle.tokenizer(text, return_tensors="pt"))
    return TextView(bundle, text, opinions, outcome)


@dataclass(frozen=True)
class Photo:
    """A photo that an installed package brings along, with its source and licence, and what to keep in mind."""

    name: str
    image: Any
    source: str
    note: str


@dataclass(frozen=True)
class PhotoView:
    """What one model makes of one photo: probabilities of groups and classes, and maps for the explained classes."""

    bundle: Bundle
    photo: Photo
    groups: Mapping[str, float]
    favourites: Mapping[str, float]
    explained: Mapping[str, str]
    outcome: MethodResults

    @property
    def sentence(self) -> str:
        """The model's opinion in one sentence."""
        shares = ", ".join(f"{100 * share:.0f} % {group}" for group, share in self.groups.items())
        name, share = next(iter(self.favourites.items()))
        return f"{self.bundle.name} on the {self.photo.name}: {shares}; most likely {name} ({100 * share:.0f} %)"


def command(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the page.")] = Path("out/demo"),
) -> None:
    """Explain photos and texts with models of the zoo by every method that serves them, offline, in a minute.

    Example: mhex demo --out out/demo
    """
    started = time.perf_counter()
    out = output_folder(out)
    with busy("Loading the zoo"):
        import mhex
        from mhex.cli.demo_page import demo_page
        from mhex.methods import all_methods

        photos = demo_photos()
        bundles = [mhex.load(name) for name in MODELS]
        headed, reader = mhex.load(HEADED), mhex.load(READER)
        methods = list(all_methods())
    texts = TEXTS
    work = (len(photos) * len(bundles) + len(texts)) * len(methods) + len(METHODS)
    with steps(work) as step:
        looks = [look(bundle, photo, methods, step) for photo in photos for bundle in bundles]
        # The network under the heads is the last of the models, so its favourite classes are the same.
        heads = look_into(headed, photos[0], list(looks[len(bundles) - 1].explained.values()), step)
        readings = [read_news(reader, text, methods, step) for text in texts]
    with busy("Drawing the page"):
        text = demo_page(looks, heads, readings)
    file = out / "index.html"
    write_text(text, file)
    results: list[PhotoView | TextView] = [*looks, *readings]
    sentences = [*(result.sentence for result in looks), heads.sentence, *(result.sentence for result in readings)]
    say("\n".join(f"{sentence}." for sentence in sentences))
    count = sum(len(result.outcome.explanations) for result in results) + len(heads.explanations)
    say(
        f"Explained {len(photos)} photos and {len(texts)} texts with {len(bundles) + 2} models and {len(methods)} "
        f"methods ({count} explanations) in {time.perf_counter() - started:.0f} s: open {file}"
    )


def quick_options(methods: Sequence[str], modality: str) -> dict[str, Mapping[str, Any]]:
    """Fewer passes for methods of many passes, which would take longer than all the others together."""
    from mhex.methods import get_method

    return {name: get_method(name).quick.get(modality, {}) for name in methods}


def demo_photos() -> list[Photo]:
    """The photos: a cat, and something that is no pet. Both are files inside the installed scikit-image."""
    from PIL import Image

    from mhex.errors import require

    data = require("skimage.data", extra="demo")
    return [
        Photo(
            "cat",
            Image.fromarray(data.chelsea()),
            "Chelsea the cat, photo by Stefan van der Walt, CC0; it comes with scikit-image.",
            "The photo is not of the data set that the models learned from. The breed is not known, so only cat or "
            "dog can be judged.",
        ),
        Photo(
            "rocket",
            Image.fromarray(data.rocket()),
            "A Falcon 9 on its launch pad, photo by SpaceX, public domain; it comes with scikit-image.",
            "This is no pet. The models know breeds of cats and dogs and nothing else, so each must name one, and "
            "its probabilities must sum to 1. A map says what a decision was taken from, not that it makes sense.",
        ),
    ]


def look(bundle: Bundle, photo: Photo, methods: list[str], step: Step) -> PhotoView:
    """Explain a photo for the top class of each of the card's groups, by every method that serves the model."""
    import torch

    names, groups = bundle.class_names, bundle.card.get("groups")
    if names is None or not groups or bundle.preprocess is None:
        raise ArgumentError(f"Expected the card of {bundle.name} to name groups of classes, but it has none.")
    with torch.inference_mode():
        probabilities = bundle.model(bundle.preprocess(photo.image)[None]).softmax(1)[0]
    shares = dict(zip(names, probabilities.tolist(), strict=True))
    explained = {group: max(members, key=shares.__getitem__) for group, members in groups.items()}
    outcome = explain_by(
        bundle,
        photo.image,
        methods,
        list(explained.values()),
        lambda name: step(f"{photo.name}, {bundle.name}: {name}"),
        options=quick_options(methods, "image"),
        pass_over=True,
    )
    return PhotoView(
        bundle,
        photo,
        {group: sum(shares[name] for name in members) for group, members in groups.items()},
        top_classes(probabilities.tolist(), names),
        explained,
        outcome,
    )
