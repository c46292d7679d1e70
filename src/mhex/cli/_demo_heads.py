"""The demo's part on explainer heads: what each head of a network says, and where it looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mhex.cli._console import Step
from mhex.cli._run import explain_by
from mhex.errors import ArgumentError

if TYPE_CHECKING:
    from mhex.bundle import Bundle
    from mhex.cli.demo import Photo
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
