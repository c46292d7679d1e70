"""What a recipe file says, as frozen models with what must hold between keys. docs/train.md describes every key."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, model_validator

from mhex._schema import build
from mhex.errors import ArgumentError, some_of, unknown_name
from mhex.inputs.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from mhex.lab.config import schema
from mhex.lab.config.schema import Count, FileSection, NamedFiles, Natural, NotNegative, Positive, Share, ShareBelowOne

# Keys that a section leaves no use for, and why.
_CLASHES = {
    "fit": {
        **dict.fromkeys(("model.start", "model.arguments", "model.extra"), "it leaves the model as it is"),
        **dict.fromkeys(("augment", "distil", "unlabelled"), "nothing is trained"),
    },
    "unlabelled": {
        "heads": "explainer heads learn from labels",
        "distil": "teachers have learned from labels",
        "ship": "the network has no classifier; ship a probe that starts from it",
        **dict.fromkeys(("train.smoothing", "train.early_stopping"), "it needs labels"),
    },
}
_SHIPPABLE = ("timm", "minilm", "words", "zoo")  # sources of networks that the zoo can build from a card
SMOKE_SAMPLES = 16


class RecipeHeads(FileSection):
    """Multi-Head Explainer heads: the arguments of `mhex.attach` and of the loss; None leaves an argument out."""

    where: str | tuple[str, ...] = "all"
    preset: Literal["paper", "identity", "warmup", "probe"] = "identity"
    coupling: str | None = None
    gate_target: str | None = None
    relu: str | None = None
    exclude_special: bool | None = None
    mode: Literal["pretrain", "finetune"] = "finetune"
    decay: Share = 0.8
    classifier: bool = True
    reduction: Literal["sum", "mean"] = "sum"


class RecipeFit(FileSection):
    """Heads without training: arguments of `Scaffold.fit`."""

    method: Literal["ridge", "logistic"] = "ridge"
    balance: bool = True
    strength: Positive | None = None


class RecipeUnlabelled(FileSection):
    """Contrastive learning without labels (SimCLR, Chen et al. 2020), behind a projector that is thrown away."""

    method: Literal["simclr"] = "simclr"
    hidden: Count = 1024
    width: Annotated[int, Field(ge=2)] = 128
    temperature: Positive = 0.2


class RecipeData(FileSection):
    """What to learn."""

    name: str
    side: Annotated[int, Field(ge=8, le=4096)] | None = None
    length: Annotated[int, Field(ge=4, le=100_000)] | None = None
    split: str | None = None
    validation: ShareBelowOne | str | None = None
    test: str | None = None
    limit: Count | None = None
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[Positive, Positive, Positive] = IMAGENET_STD


class RecipeModel(FileSection):
    """What learns."""

    source: Literal["timm", "torchvision", "hf-folder", "minilm", "words", "zoo"]
    architecture: str = ""
    arguments: Mapping[str, Any] = {}
    extra: Mapping[str, Any] = {}
    start: str | None = None


class RecipeStop(FileSection):
    """Early stopping: leave when the validation has not improved for `patience` epochs in what we `watch`."""

    patience: Count
    watch: Literal["loss", "accuracy"] = "loss"


class RecipeTraining(FileSection):
    """How to learn."""

    epochs: Count
    batch: Count
    rate: Positive
    optimizer: str = "adamw"
    decay: NotNegative = 0.0
    betas: tuple[ShareBelowOne, ShareBelowOne] | None = None
    momentum: ShareBelowOne = 0.9
    schedule: Literal["cosine", "one-cycle", "linear", "constant"] = "cosine"
    warmup: Share = 0.05
    floor: Share = 0.0
    clip: Positive | None = None
    accumulate: Count = 1
    precision: Annotated[  # YAML reads a bare `no` as false
        Literal["auto", "no", "bf16", "fp16"], BeforeValidator(lambda value: "no" if value is False else value)
    ] = "auto"
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    smoothing: ShareBelowOne = 0.0
    early_stopping: RecipeStop | None = None
    keep: Literal["best", "last"] = "best"
    head_rate: Positive = 1.0
    freeze: Literal["none", "host", "body"] = "none"
    compile: bool = False


class RecipeAugment(FileSection):
    """Strengths of the random changes of images; the defaults suit small photo collections."""

    canvas: Natural = 0
    scale: tuple[float, float] = (0.25, 1.0)
    ratio: tuple[Positive, Positive] = (0.75, 4 / 3)
    rotate: Annotated[float, Field(ge=0, le=180)] = 10.0
    flip: Share = 0.5
    light: Share = 0.3
    colour: Share = 0.3
    cast: Share = 0.08
    grey: Share = 0.05
    erase: Share = 0.0
    cutmix: Share = 0.5
    mixup: Share = 0.2

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ArgumentError(f"scale should be two ascending shares in (0, 1], not {self.scale}.")
        if self.ratio[0] > self.ratio[1]:
            raise ArgumentError(f"ratio should be two ascending numbers, not {self.ratio}.")
        if self.cutmix + self.mixup > 1:
            sums = f"{self.cutmix} + {self.mixup}"
            raise ArgumentError(f"cutmix and mixup exclude each other, so they should sum to at most 1, not {sums}.")
        return self


class RecipeDistillation(FileSection):
    """Teachers: names of recipes, the share of their loss (the rest is the labels'), and the temperature."""

    teachers: Annotated[tuple[str, ...], Field(min_length=1)]
    share: Share = 0.8
    temperature: Positive = 2.0


class RecipeShipping(FileSection):
    """Write weights for others, with a card whose accuracy is measured from that very file."""

    bits: Literal[8, 16, 32] = 16


class TrainingRecipe(FileSection):
    """A whole recipe: which network learns what, and how."""

    name: str
    title: str
    data: RecipeData
    model: RecipeModel
    train: RecipeTraining | None = None
    fit: RecipeFit | None = None
    seed: Natural = 0
    heads: RecipeHeads | None = None
    unlabelled: RecipeUnlabelled | None = None
    augment: RecipeAugment | None = None
    distil: RecipeDistillation | None = None
    ship: RecipeShipping | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Refuse keys that do not go together."""
        for mistake in self._mistakes():
            raise ArgumentError(mistake)
        return self

    def _mistakes(self) -> Iterator[str]:
        source = self.model.source
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.name):
            yield f"name is the name of a folder too: letters, digits, '.', '_' and '-', not {self.name!r}."
        if (self.train is None) == (self.fit is None):
            yield f"expected one of the sections train and fit, but got {'both' if self.train else 'neither'}."
        if self.ship is not None and source not in _SHIPPABLE:
            yield f"ship is for mhex.load, which reads {', '.join(_SHIPPABLE)} and not {source}: leave ship out."
        if self.name in self.needs:
            yield f"{self.name} cannot start from its own weights or teach itself."
        for section, clashes in _CLASHES.items():
            for key, reason in clashes.items():
                if getattr(self, section) is not None and attrgetter(key)(self):
                    yield f"{key} does not go with {section}: {reason}. Leave it out."
        if self.fit is not None:
            yield from self._mistakes_of_fit()
        if self.train is not None:
            yield from self._mistakes_of_training(self.train)
            if self.unlabelled is not None:
                yield from self._mistakes_without_labels(self.train)

    def _mistakes_of_fit(self) -> Iterator[str]:
        if self.model.source != "zoo":
            yield f"fit needs a trained model, so model.source should be zoo, not {self.model.source}."
        if self.heads is None:
            yield "fit fits explainer heads, and the recipe has none; add the section heads."
        elif self.heads.preset != "probe" and self.heads.coupling != "head_only":
            yield "heads.preset should be probe, so that fitted heads change no prediction of the model."
        elif not self.heads.classifier:
            yield "heads.classifier: the classifier of the zoo's model answers; leave it true."

    def _mistakes_of_training(self, train: RecipeTraining) -> Iterator[str]:
        heads = self.heads
        if self.model.source == "zoo":
            yield "model.source: a model of the zoo stays as it is; fit heads to it with the section fit."
        if train.batch % train.accumulate:
            yield f"train.batch should be a multiple of train.accumulate, not {train.batch}."
        if heads is None:
            if train.freeze == "host":
                yield "train.freeze: host trains explainer heads alone, and the recipe has no heads; add the section."
            return
        # The network's own classifier must learn, or be trained and stay as it is, if it is to answer.
        answers = heads.classifier or heads.preset == "probe"
        learns = heads.classifier and train.freeze != "host"
        trained = self.model.start is not None or self.model.source == "hf-folder"
        if answers and not learns and not (trained and train.freeze == "host"):
            yield (
                f"the network's own classifier answers with heads.preset: {heads.preset}, but nothing trains it with "
                f"heads.classifier: {str(heads.classifier).lower()} and train.freeze: {train.freeze}: change one of "
                "them, or start from a trained network (model.start)."
            )
        if train.compile:
            yield "train.compile does not go with heads, which read what passes through the network; set it false."

    def _mistakes_without_labels(self, train: RecipeTraining) -> Iterator[str]:
        augment = self.augment
        if self.model.source != "timm":
            yield f"unlabelled needs a network of timm, which can do without a classifier, not {self.model.source}."
        if augment is None:
            yield "unlabelled compares views of an image, which differ by augment alone: add the section augment."
        elif augment.cutmix or augment.mixup:
            yield "augment.cutmix and augment.mixup should be 0 with unlabelled: a view shows one image."
        if train.accumulate > 1 or train.batch < 2:
            yield "train.accumulate should be 1 and train.batch at least 2 with unlabelled: it compares images."
        if train.freeze != "none":
            yield f"train.freeze: {train.freeze} does not go with unlabelled, which trains the body: leave it out."

    @property
    def training(self) -> RecipeTraining:
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
        """Give the recipe as plain values, as JSON and YAML hold them."""
        plain = self.model_dump(mode="json")
        # Absent rather than null, so that the digests of recipes without these sections stay what they were.
        return {key: value for key, value in plain.items() if key not in ("fit", "unlabelled") or value is not None}

    def identity(self) -> dict[str, Any]:
        """Give what decides the weights: all but the title, the test split, and what is done with them afterwards."""
        plain = {key: value for key, value in self.as_dict().items() if key not in ("title", "ship")}
        return {**plain, "data": {key: value for key, value in plain["data"].items() if key != "test"}}

    def digest(self) -> str:
        """Give a hash of the recipe's identity."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()

    def check_same(self, old: TrainingRecipe, out: Path) -> None:
        """Refuse to go on in a folder with the work of a recipe that differs in what decides the weights."""
        if wrong := _differences(old.identity(), self.identity()):
            words = f"{out} holds the work of another recipe, which differs in {some_of(wrong, 4)}"
            raise ArgumentError(f"{words}: begin anew with --restart, or choose another folder with --out.")

    def smoke(self) -> TrainingRecipe:
        """Cut the recipe down to a step or two, to try whether everything fits together."""
        train, data, augment = self.train, self.data, self.augment
        # A small share of a few samples would be none of them.
        shared = isinstance(data.validation, float) and data.validation > 0
        few = {"limit": SMOKE_SAMPLES, "validation": 0.25 if shared else data.validation}
        short = train and train.model_copy(update={"epochs": 1, "batch": 8 * train.accumulate, "compile": False})
        small = augment and augment.model_copy(update={"canvas": 0})
        return self.model_copy(update={"data": data.model_copy(update=few), "train": short, "augment": small})


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], place: str = "") -> list[str]:
    """Name the keys in which two recipes differ, with their values: ``train.epochs (3 there, 5 here)``."""
    keys: list[str] = []
    for key in dict.fromkeys((*old, *new)):
        before, now, name = old.get(key), new.get(key), f"{place}{key}"
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            keys += _differences(before, now, f"{name}.")
        elif before != now:
            keys.append(f"{name} ({before!r} there, {now!r} here)")
    return keys


_RECIPES = NamedFiles("recipe", "mhex train --list")
packaged_recipes, find_recipe = _RECIPES.packaged, _RECIPES.find


def find_named(name: str, folder: Path) -> Path:
    """Find the file of the recipe `name` that another one needs, whatever the file is called.

    Recipes of the folder come before the packaged ones of the same name; a name that two of them have is refused.
    """
    files = [path for path in sorted(folder.iterdir()) if path.suffix in schema.SUFFIXES and _name_in(path) == name]
    files = [path for path in files if path.stem == name] or files
    if len(files) > 1:
        raise ArgumentError(f"{files[0].name} and {files[1].name} both hold a recipe {name!r}: rename one of them.")
    packaged = packaged_recipes()
    if not files and name not in packaged:
        raise unknown_name("recipe", name, packaged)
    return files[0] if files else packaged[name]


def _name_in(path: Path) -> Any:
    """Read the name that a recipe file gives its recipe; a file with mistakes, told later, may be what it is called."""
    try:
        return _RECIPES.read(path).get("name")
    except ArgumentError:
        return path.stem


def read_recipe(path: Path, changes: Sequence[str] = ()) -> TrainingRecipe:
    """Read a recipe file, put changes ``section.key=value`` over it, and check it; a mistake names file and key."""
    raw = _RECIPES.read(path)
    for change in changes:
        _override(raw, change)
    return build(TrainingRecipe, raw, path.name)


def _override(raw: dict[str, Any], change: str) -> None:
    """Put ``section.key=value`` into what a file said; the keys are checked with the file's own."""
    keys, equals, text = change.partition("=")
    *parents, last = keys.strip().split(".")
    if not equals or not all((*parents, last)):
        raise ArgumentError(f"Expected --set section.key=value, e.g. --set train.epochs=2, but got {change!r}.")
    section: Any = raw
    for name in parents:
        if section.get(name) is None:
            section[name] = {}
        section = section[name]
        if not isinstance(section, dict):
            raise ArgumentError(f"--set {change}: {name} is not a section of keys, so {last} cannot be set in it.")
    try:
        section[last] = schema.read_yaml(text)
    except yaml.YAMLError as error:
        raise ArgumentError(f"--set {keys}: the value is not valid YAML: {' '.join(str(error).split())}.") from error
