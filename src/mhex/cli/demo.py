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
from mhex.cli.explain import MethodResults, explain_by
from mhex.cli.lists import accuracy_words
from mhex.errors import ArgumentError, by_reason

if TYPE_CHECKING:
    from mhex.bundle import Bundle

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
    sentence: str


@dataclass(frozen=True)
class Opinion:
    """The most probable classes of a head, or of the network's classifier, and its accuracy on the test split."""

    name: str
    accuracy: float | None
    favourites: Mapping[str, float]


@dataclass(frozen=True)
class HeadsView:
    """What the heads of one network, and then its classifier, make of a photo or a text, and its explanations."""

    bundle: Bundle
    source: Any
    opinions: list[Opinion]
    outcome: MethodResults
    sentence: str


def command(out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the page.")] = Path("out/demo")) -> None:
    """Explain photos and texts with models of the zoo by every method that serves them, offline, in a minute.

    Example: mhex demo --out out/demo
    """
    started = time.perf_counter()
    out = output_folder(out)
    with busy("Loading the zoo"):
        import mhex
        from mhex.methods import all_methods

        photos = demo_photos()
        bundles = [mhex.load(name) for name in MODELS]
        headed, reader = mhex.load(HEADED), mhex.load(READER)
        methods = list(all_methods())
    work = (len(photos) * len(bundles) + len(TEXTS)) * len(methods) + len(METHODS)
    with steps(work) as step:
        looks = [look(bundle, photo, methods, step) for photo in photos for bundle in bundles]
        # The network under the heads is the last of the models, so its favourite classes are the same.
        heads = look_into(headed, photos[0], list(looks[len(bundles) - 1].explained.values()), step)
        readings = [read_news(reader, text, methods, step) for text in TEXTS]
    file = out / "index.html"
    with busy("Drawing the page"):
        write_text(demo_page(looks, heads, readings), file)
    views: list[PhotoView | HeadsView] = [*looks, heads, *readings]
    say("\n".join(f"{view.sentence}." for view in views))
    count = sum(len(view.outcome.explanations) for view in views)
    say(
        f"Explained {len(photos)} photos and {len(TEXTS)} texts with {len(bundles) + 2} models and {len(methods)} "
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


def look(bundle: Bundle, photo: Photo, methods: list[str], step: Step) -> PhotoView:
    """Explain a photo for the top class of each of the card's groups, by every method that serves the model."""
    import torch

    names, groups = bundle.class_names, bundle.card.get("groups")
    if names is None or not groups or bundle.preprocess is None:
        raise ArgumentError(f"Expected the card of {bundle.name} to name groups of classes, but it has none.")
    with torch.inference_mode():
        probabilities = bundle.model(bundle.preprocess(photo.image)[None]).softmax(1)[0].tolist()
    shares = dict(zip(names, probabilities, strict=True))
    explained = {group: max(members, key=shares.__getitem__) for group, members in groups.items()}
    sums = {group: sum(shares[name] for name in members) for group, members in groups.items()}
    favourites = _top_classes(probabilities, names)
    name, share = next(iter(favourites.items()))
    words = f"{bundle.name} on the {photo.name}: {_in_words(sums)}; most likely {name} ({100 * share:.0f} %)"
    classes, label, options = list(explained.values()), f"{photo.name}, {bundle.name}", quick_options(methods, "image")
    outcome = explain_by(bundle, photo.image, methods, classes, step, label, options=options, pass_over=True)
    return PhotoView(bundle, photo, sums, favourites, explained, outcome, words)


def look_into(bundle: Bundle, photo: Photo, classes: list[str], step: Step) -> HeadsView:
    """Ask the heads of a network about a photo, for the classes with these names."""
    if bundle.preprocess is None:
        raise ArgumentError(f"Expected a network that reads photos, but {bundle.name} does not.")
    label, options = f"{photo.name}, {bundle.name}", {"mhex": {"per_layer": True}}
    outcome = explain_by(bundle, photo.image, METHODS, classes, step, label, options=options)
    opinions = _opinions(bundle, bundle.preprocess(photo.image)[None])
    answers = ", ".join(f"{opinion.name} {next(iter(opinion.favourites))}" for opinion in opinions)
    return HeadsView(bundle, photo, opinions, outcome, f"Heads of {bundle.name} on the {photo.name}: {answers}")


def read_news(bundle: Bundle, text: str, methods: list[str], step: Step) -> HeadsView:
    """Explain a text for its two most probable classes, by every method that serves the model."""
    if bundle.tokenizer is None:
        raise ArgumentError(f"Expected a model that reads texts, but {bundle.name} does not.")
    label, options = f"news, {bundle.name}", quick_options(methods, "text")
    outcome = explain_by(bundle, text, methods, "top2", step, label, options=options, pass_over=True)
    opinions = _opinions(bundle, bundle.tokenizer(text, return_tensors="pt"))
    words = f'{bundle.name} on "{" ".join(text.split()[:4])} ...": {_in_words(opinions[-1].favourites)}'
    return HeadsView(bundle, text, opinions, outcome, words)


def _opinions(bundle: Bundle, inputs: Any) -> list[Opinion]:
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
        Opinion(name, accuracy, _top_classes(logits[0].float().softmax(0).tolist(), bundle.class_names))
        for (name, logits), accuracy in zip(scores.items(), accuracies, strict=True)
    ]


def _top_classes(probabilities: Sequence[float], names: Sequence[str]) -> dict[str, float]:
    """The three most probable classes, the first one first."""
    shares = dict(zip(names, probabilities, strict=True))
    return {name: shares[name] for name in sorted(shares, key=shares.__getitem__, reverse=True)[:3]}


def _in_words(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{100 * share:.0f} % {name}" for name, share in shares.items())


def quick_options(methods: Sequence[str], modality: str) -> dict[str, Mapping[str, Any]]:
    """Fewer passes for methods of many passes, which would take longer than all the others together."""
    from mhex.methods import get_method

    return {name: get_method(name).quick.get(modality, {}) for name in methods}


def demo_page(looks: Sequence[PhotoView], heads: HeadsView, readings: Sequence[HeadsView]) -> str:
    """The page: a section per photo and model, the heads, the news, the models' cards, and how to go on."""
    from mhex.viz import Section, comparison, page, picture_tag, to_html
    from mhex.viz.pages import part

    template, sections = "demo.html", []
    for view in looks:
        explanations, photo, maps = view.outcome.explanations, view.photo, ""
        if explanations:
            classes, names = " and ".join(view.explained.values()), ", ".join(entry.method for entry in explanations)
            alt = f"Heat maps over the photo of the {photo.name} for {classes}, by {names}"
            maps = picture_tag(comparison(explanations, columns=4), alt)
        html = part("photo", template, view=view, maps=maps, omitted=by_reason(view.outcome.left_out))
        title = f"The {photo.name}, {view.bundle.name}"
        sections.append(Section(title, html, f"{photo.note}\n\n{photo.source}"))
    explanations, photo = heads.outcome.explanations, heads.source
    layers, names = explanations[0].by_layer(), ", ".join(entry.method for entry in explanations)
    classes = " and ".join(explanations[0].target_names(0))
    blocks = comparison(list(layers.values()), labels=list(layers))
    html = part(
        "heads",
        template,
        opinions=heads.opinions,
        layers=picture_tag(blocks, f"Heat maps of the blocks {', '.join(layers)} for {classes}"),
        combined=picture_tag(comparison(explanations), f"Heat maps for {classes} by {names}"),
    )
    sections.append(Section(f"What its heads say: the {photo.name}, {heads.bundle.name}", html, photo.source))
    for number, reading in enumerate(readings, 1):
        words = to_html(reading.outcome.explanations) if reading.outcome.explanations else ""
        html = part("news", template, view=reading, words=words, omitted=by_reason(reading.outcome.left_out))
        sections.append(Section(f"News {number}, {reading.bundle.name}", html))
    bundles = [view.bundle for view in looks] + [view.bundle for view in (heads, *readings)]
    for bundle in {bundle.name: bundle for bundle in bundles}.values():
        accuracy = accuracy_words(bundle.card.get("accuracy"))
        html = part("card", template, card=bundle.card, classes=bundle.class_names or (), accuracy=accuracy)
        sections.append(Section(f"Card of {bundle.name}", html))
    sections.append(Section("Do it yourself", part("commands", template)))
    return page("mhex: networks explained", part("intro", template), sections)
