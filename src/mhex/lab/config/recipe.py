"""What a recipe file says, as frozen dataclasses. Every key is described here and in docs/train.md."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from mhex._schema import setting
from mhex.errors import ArgumentError
from mhex.inputs.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from mhex.lab.train.augment import Augment


@dataclass(frozen=True)
class HeadsPart:
    """Multi-Head Explainer heads: the arguments of `mhex.attach` and of the loss; None leaves an argument out.

    Attributes:
        where: Units that get a head: a placement such as `all`, or a list of unit names.
        preset: Form and start of the gates.
        coupling: Variant of the coupling.
        gate_target: What the gate multiplies.
        relu: Where the ReLU sits.
        exclude_special: Whether special tokens stay out of the pooling.
        mode: `pretrain` for one loss of the summed logits, `finetune` for the sum of the heads' losses.
        decay: Decay of the running sum of logits.
        classifier: Whether the host's classifier is part of the loss, and then gives the answers.
        reduction: `sum` or `mean` of the heads' losses.
    """

    where: str | tuple[str, ...] = "all"
    preset: Literal["paper", "identity", "warmup", "probe"] = "identity"
    coupling: str | None = None
    gate_target: str | None = None
    relu: str | None = None
    exclude_special: bool | None = None
    mode: Literal["pretrain", "finetune"] = "finetune"
    decay: float = setting(0.8, low=0, high=1)
    classifier: bool = True
    reduction: Literal["sum", "mean"] = "sum"


@dataclass(frozen=True)
class FitPart:
    """Heads without training: arguments of `Scaffold.fit`.

    Attributes:
        method: `ridge` (closed form) or `logistic`.
        balance: Whether every class counts the same, however rare.
        strength: Of the penalty; null to choose it on held-out samples.
    """

    method: Literal["ridge", "logistic"] = "ridge"
    balance: bool = True
    strength: float | None = setting(None, above=0)


@dataclass(frozen=True)
class UnlabelledPart:
    """Contrastive learning without labels (SimCLR, Chen et al. 2020).

    Two views of an image should be nearer to each other than to the views of all other images of the batch. They are
    compared behind a projector that is thrown away at the end.

    Attributes:
        method: `simclr`.
        hidden: Width of the projector's hidden layer.
        width: Width of its output, where views are compared by their cosine.
        temperature: Divides the cosines; a lower one looks at the most similar images alone.
    """

    method: Literal["simclr"] = "simclr"
    hidden: int = setting(1024, low=1)
    width: int = setting(128, low=2)
    temperature: float = setting(0.2, above=0)


SMOKE_SAMPLES = 16


@dataclass(frozen=True)
class DataPart:
    """What to learn.

    Attributes:
        name: A data set of `mhex.lab.datasets`.
        side: Side of the input in pixels; required for images.
        length: Most tokens of a text; longer ones are cut. Required for texts.
        split: Split to learn from; the data set's own by default.
        validation: A split, or a share of the training samples that is held out; 0 for none. By default the data set's
            own validation split, or none.
        test: Split to judge by at the end; the data set's own by default.
        limit: At most so many samples of each split.
        mean: Of each colour, taken off after scaling to 0..1.
        std: Of each colour, divided by afterwards.
    """

    name: str
    side: int | None = setting(None, low=8, high=4096)
    length: int | None = setting(None, low=4, high=100_000)
    split: str | None = None
    validation: float | str | None = setting(None, low=0, below=1)
    test: str | None = None
    limit: int | None = setting(None, low=1)
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = setting(IMAGENET_STD, above=0)


@dataclass(frozen=True)
class ModelPart:
    """What learns.

    Attributes:
        source: `timm`, `torchvision`, `hf-folder` (a local Hugging Face folder), `minilm` (its pip package) or `zoo` (a
            trained model that ships with mhex and stays as it is; heads are fitted to it).
        architecture: Name in timm, torchvision or the zoo; the folder, absolute or in the data folder, for `hf-folder`.
        arguments: Arguments that shape the network, number of classes aside.
        extra: Arguments that matter in training alone, such as `drop_path_rate`.
        start: Name of a recipe whose weights to start from; classifier and heads are kept for the same data only.
    """

    source: Literal["timm", "torchvision", "hf-folder", "minilm", "zoo"]
    architecture: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    start: str | None = None


@dataclass(frozen=True)
class StopPart:
    """Early stopping: leave when the validation has not improved for `patience` epochs in what we `watch`."""

    patience: int = setting(low=1)
    watch: Literal["loss", "accuracy"] = "loss"


@dataclass(frozen=True)
class TrainPart:
    """How to learn.

    Attributes:
        epochs: Passes over the samples.
        batch: Samples per step, over all processes and slices together.
        optimizer: A name that timm's optimizer factory knows, such as `adamw`, `sgd` (Nesterov) or `momentum`.
        rate: Highest learning rate.
        decay: Weight decay, not applied to norms and biases.
        betas: Both averages of the Adam family.
        momentum: Of the SGD family.
        schedule: Course of the rate after the warm-up.
        warmup: Share of the steps that raise the rate.
        floor: Share of the rate that is left at the end.
        clip: Largest norm of the gradient; null for any. One loss per head makes the gradient several times longer, so
            a bound that hardly touches a plain network holds one with heads back.
        accumulate: Slices of a batch that are computed one after the other, to save memory.
        precision: `bf16` and `fp16` compute in half precision; `auto` is bf16 on a GPU and `no` elsewhere.
        ema: Decay of the running average of the weights, which then is what is judged and written; null for none.
        smoothing: Amount of label smoothing, within groups of classes where there are groups.
        early_stopping: When to leave before the last epoch.
        keep: Weights that count in the end: `best` on validation (the last ones where there is none) or `last`.
        head_rate: Factor of the learning rate for the explainer heads.
        freeze: `host` trains the explainer heads alone, `body` these and the classifier (with BERT's pooler).
        compile: Whether to compile the network; pays for long runs on a GPU.
    """

    epochs: int = setting(low=1)
    batch: int = setting(low=1)
    rate: float = setting(above=0)
    optimizer: str = "adamw"
    decay: float = setting(0.0, low=0)
    betas: tuple[float, float] | None = setting(None, low=0, below=1)
    momentum: float = setting(0.9, low=0, below=1)
    schedule: Literal["cosine", "one-cycle", "linear", "constant"] = "cosine"
    warmup: float = setting(0.05, low=0, high=1)
    floor: float = setting(0.0, low=0, high=1)
    clip: float | None = setting(None, above=0)
    accumulate: int = setting(1, low=1)
    precision: Literal["auto", "no", "bf16", "fp16"] = "auto"
    ema: float | None = setting(None, above=0, below=1)
    smoothing: float = setting(0.0, low=0, below=1)
    early_stopping: StopPart | None = None
    keep: Literal["best", "last"] = "best"
    head_rate: float = setting(1.0, above=0)
    freeze: Literal["none", "host", "body"] = "none"
    compile: bool = False


@dataclass(frozen=True)
class DistilPart:
    """Teachers: names of recipes, the share of their loss (the rest is the labels'), and the temperature."""

    teachers: tuple[str, ...]
    share: float = setting(0.8, low=0, high=1)
    temperature: float = setting(2.0, above=0)


@dataclass(frozen=True)
class ShipPart:
    """Write weights for others, with a card whose accuracy is measured from that very file.

    Attributes:
        bits: Of a weight: 32, 16 (float16) or 8 (whole numbers, with a scale for each output of a layer).
    """

    bits: Literal[8, 16, 32] = 16


@dataclass(frozen=True)
class Recipe:
    """A whole recipe: which network learns what, and how.

    Attributes:
        name: Name of the recipe and of its folder.
        title: One line about it.
        seed: Everything random follows from it.
        data: What to learn.
        model: What learns.
        train: How; null where heads are fitted instead.
        fit: How heads are fitted to a trained model of the zoo; null where the network is trained.
        heads: Explainer heads; null for none.
        unlabelled: How to learn without labels; null for learning with them.
        augment: Random changes of the images; null for none.
        distil: Teachers; null for none.
        ship: Files for others; null for none.
    """

    name: str
    title: str
    data: DataPart
    model: ModelPart
    train: TrainPart | None = None
    fit: FitPart | None = None
    seed: int = setting(0, low=0)
    heads: HeadsPart | None = None
    unlabelled: UnlabelledPart | None = None
    augment: Augment | None = None
    distil: DistilPart | None = None
    ship: ShipPart | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.name):
            raise ArgumentError(
                f"the name of a recipe is the name of its folder: letters, digits, '.', '_' and '-', not {self.name!r}."
            )
        if (self.train is None) == (self.fit is None):
            came = "neither" if self.train is None else "both"
            raise ArgumentError(f"expected one of the sections train and fit, but got {came}.")

    @property
    def training(self) -> TrainPart:
        """The section `train` of a recipe that has one."""
        if self.train is None:
            raise ArgumentError(f"The recipe {self.name!r} has no section train: its heads are fitted.")
        return self.train

    @property
    def view(self) -> Preprocess:
        """What the network sees of an image."""
        return Preprocess(self.data.side or 0, self.data.side or 0, self.data.mean, self.data.std)

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the recipes whose weights this one reads, each once."""
        start = (self.model.start,) if self.model.start else ()
        return tuple(dict.fromkeys((*start, *(self.distil.teachers if self.distil else ()))))

    def as_dict(self) -> dict[str, Any]:
        """The recipe as plain values, as JSON and YAML hold them."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        # Absent rather than null, so that the digests of recipes without these sections stay what they were.
        return {key: value for key, value in plain.items() if key not in ("fit", "unlabelled") or value is not None}

    def identity(self) -> dict[str, Any]:
        """What decides the weights: all but the title, the split to judge by, and what is done with them afterwards."""
        plain = {key: value for key, value in self.as_dict().items() if key not in ("title", "ship")}
        return {**plain, "data": {key: value for key, value in plain["data"].items() if key != "test"}}

    def digest(self) -> str:
        """A hash of the recipe's identity."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()

    def smoke(self) -> Recipe:
        """The same recipe cut down to a step or two, to try whether everything fits together."""
        short = self.train and replace(self.train, epochs=1, batch=8 * self.train.accumulate, compile=False)
        # A small share of a few samples would be none of them.
        shared = isinstance(self.data.validation, float) and self.data.validation > 0
        validation = 0.25 if shared else self.data.validation
        return replace(
            self,
            data=replace(self.data, limit=SMOKE_SAMPLES, validation=validation),
            train=short,
            augment=None if self.augment is None else replace(self.augment, canvas=0),
        )
