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
from mhex.cli._run import Outcome, explain_by
from mhex.errors import ArgumentError

if TYPE_CHECKING:
    from mhex.bundle import Bundle
    from mhex.explanation import Explanation

HEADED = "zoo:pets-mhex-resnet10t"
METHODS = ("mhex", "gradcam", "layercam")


@dataclass(frozen=True)
class Opinion:
    """What one head says, or the network's own classifier.

    Attributes:
        name: Of the block, or of the classifier.
        accuracy: Share of right answers on the test split, as the card says; None if it does not.
        favourites: The most probable classes, the first one first.
    """

    name: str
    accuracy: float | None
    favourites: Mapping[str, float]


@dataclass(frozen=True)
class HeadsLook:
    """What the heads of one network make of one photo.

    Attributes:
        bundle: The network with heads.
        photo: The photo.
        opinions: Of each head, first to last, and of the classifier.
        layers: The map of each block alone, as an explanation.
        explanations: All blocks together, and other methods beside them.
    """

    bundle: Bundle
    photo: Photo
    opinions: list[Opinion]
    layers: dict[str, Explanation]
    explanations: list[Explanation]

    @property
    def sentence(self) -> str:
        """What the heads say, in one sentence."""
        said = ", ".join(f"{one.name} {next(iter(one.favourites))}" for one in self.opinions)
        return f"Heads of {self.bundle.name} on the {self.photo.name}: {said}"


def head_opinions(bundle: Bundle, inputs: Any) -> list[Opinion]:
    """Run a network with heads once on one sample.

    Args:
        bundle: Its card names the accuracy of each head.
        inputs: A tensor (1, 3, H, W), or what a tokenizer gave for one text.

    Returns:
        One opinion per head, first to last, then that of the network's classifier.
    """
    import torch

    from mhex import Scaffold

    if bundle.class_names is None:
        raise ArgumentError(f"Expected the card of {bundle.name} to name its classes, but it does not.")
    scaffold = Scaffold(bundle.model)
    with torch.inference_mode():
        bundle.model(inputs) if isinstance(inputs, torch.Tensor) else bundle.model(**inputs)
    scores = {**scaffold.head_logits, "the network": scaffold.reading.scores("classifier")}
    known = bundle.card.get("accuracy", {})
    host = next((value for value in known.values() if isinstance(value, float)), None)
    accuracies = [*known.get("heads", [None] * len(scaffold.names)), host]
    return [
        Opinion(name, accuracy, top_classes(logits[0].float().softmax(0).tolist(), bundle.class_names))
        for (name, logits), accuracy in zip(scores.items(), accuracies, strict=True)
    ]


def top_classes(probabilities: Sequence[float], names: Sequence[str], count: int = 3) -> dict[str, float]:
    """The most probable classes, the first one first."""
    shares = dict(zip(names, probabilities, strict=True))
    return {name: shares[name] for name in sorted(shares, key=shares.__getitem__, reverse=True)[:count]}


def look_into(bundle: Bundle, photo: Photo, classes: list[str], step: Step) -> HeadsLook:
    """Ask the heads of a network about a photo.

    Args:
        bundle: With heads.
        photo: The photo.
        classes: Names of the classes that the maps explain.
        step: Told each method as it begins.
    """
    if bundle.preprocess is None:
        raise ArgumentError(f"Expected a network that reads photos, but {bundle.name} does not.")
    outcome = explain_by(
        bundle,
        photo.image,
        METHODS,
        classes,
        lambda what: step(f"{photo.name}, {bundle.name}: {what}"),
        options={"mhex": {"per_layer": True}},
    )
    combined = outcome.explanations[0]
    opinions = head_opinions(bundle, bundle.preprocess(photo.image)[None])
    return HeadsLook(bundle, photo, opinions, combined.by_layer(), outcome.explanations)


READER = "zoo:agnews-mhex-minilm"
# Made up, so that nobody's text is used; each could stand under two headings.
TEXTS = (
    "The software company Lumenfold bought the football club Harrow Vale, and its engineers now count every pass "
    "with cameras.",
    "Ministers of both countries met the oil companies on Tuesday, and prices fell before the talks had ended.",
)
# Methods of many passes, with fewer of them.
QUICK_TEXTS: dict[str, dict[str, Any]] = {"rise": {"n": 100}, "shap": {"max_evals": 100}, "smoothgrad": {"n": 10}}


@dataclass(frozen=True)
class Reading:
    """What a model makes of one text.

    Attributes:
        bundle: The model.
        text: The text.
        opinions: Of each head, first to last, and of the classifier.
        outcome: The scores of the words, and the methods left out.
    """

    bundle: Bundle
    text: str
    opinions: list[Opinion]
    outcome: Outcome

    @property
    def sentence(self) -> str:
        """The model's opinion in one sentence."""
        shares = ", ".join(f"{100 * share:.0f} % {name}" for name, share in self.opinions[-1].favourites.items())
        return f'{self.bundle.name} on "{" ".join(self.text.split()[:4])} ...": {shares}'


def read_news(bundle: Bundle, text: str, methods: list[str], step: Step) -> Reading:
    """Explain a text for its two most probable classes, by every method that serves the model.

    Args:
        bundle: A text classifier with heads.
        text: The text.
        methods: Names of all methods.
        step: Told each method as it begins.
    """
    if bundle.tokenizer is None:
        raise ArgumentError(f"Expected a model that reads texts, but {bundle.name} does not.")
    outcome = explain_by(
        bundle,
        text,
        methods,
        "top2",
        lambda what: step(f"news, {bundle.name}: {what}"),
        options=QUICK_TEXTS,
        pass_over=True,
    )
    opinions = head_opinions(bundle, bundle.tokenizer(text, return_tensors="pt"))
    return Reading(bundle, text, opinions, outcome)


MODELS = ("zoo:pets-vit", "zoo:pets-resnet10t")
# Methods of many passes, with fewer of them: they would take longer than all the others together.
QUICK: dict[str, dict[str, Any]] = {
    "vit-cx": {"max_masks": 32},
    "scorecam": {"max_channels": 24},
    "smoothgrad": {"n": 5},
    "integrated-gradients": {"steps": 24},
    "occlusion": {"patch": 16},
    "rise": {"n": 60},
    "shap": {"max_evals": 60},
}


@dataclass(frozen=True)
class Photo:
    """A photo that an installed package brings along.

    Attributes:
        name: For people.
        image: The PIL image.
        source: Where it comes from, and its licence.
        note: What to keep in mind.
    """

    name: str
    image: Any
    source: str
    note: str


@dataclass(frozen=True)
class Look:
    """What one model makes of one photo.

    Attributes:
        bundle: The model.
        photo: The photo.
        groups: Summed probability of each group of classes, e.g. cats and dogs.
        favourites: The most probable classes.
        explained: The most probable class of each group, which the maps explain.
        outcome: The maps, and the methods left out.
    """

    bundle: Bundle
    photo: Photo
    groups: Mapping[str, float]
    favourites: Mapping[str, float]
    explained: Mapping[str, str]
    outcome: Outcome

    @property
    def sentence(self) -> str:
        """The model's opinion in one sentence."""
        shares = ", ".join(f"{100 * share:.0f} % {group}" for group, share in self.groups.items())
        name, share = next(iter(self.favourites.items()))
        return f"{self.bundle.name} on the {self.photo.name}: {shares}; most likely {name} ({100 * share:.0f} %)"


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the page.")] = Path("out/demo"),
) -> None:
    """Explain photos and texts with models of the zoo by every method that serves them, offline, in a minute.

    Example: mhex demo --out out/demo
    """
    started = time.perf_counter()
    out = output_folder(out)
    with busy("Loading the zoo"):
        import mhex
        from mhex.methods import all_methods
        from mhex.viz.demo_page import demo_page

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
    said = [*(one.sentence for one in looks), heads.sentence, *(one.sentence for one in readings)]
    say("\n".join(f"{sentence}." for sentence in said))
    outcomes = [*(one.outcome for one in looks), *(one.outcome for one in readings)]
    count = sum(len(one.explanations) for one in outcomes) + len(heads.explanations)
    say(
        f"Explained {len(photos)} photos and {len(texts)} texts with {len(bundles) + 2} models and {len(methods)} "
        f"methods ({count} explanations) in {time.perf_counter() - started:.0f} s: open {file}"
    )


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


def look(bundle: Bundle, photo: Photo, methods: list[str], step: Step) -> Look:
    """Explain a photo for the top class of each of the card's groups, by every method that serves the model.

    Args:
        bundle: From the zoo; its card must name groups of classes.
        photo: The photo.
        methods: Names of all methods.
        step: Told each method as it begins.
    """
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
        lambda what: step(f"{photo.name}, {bundle.name}: {what}"),
        options=QUICK,
        pass_over=True,
    )
    return Look(
        bundle,
        photo,
        {group: sum(shares[name] for name in members) for group, members in groups.items()},
        top_classes(probabilities.tolist(), names),
        explained,
        outcome,
    )
