"""What must hold between the keys of a recipe, said in one sentence before any work is spent."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

from mhex.errors import ArgumentError, require, unknown_name
from mhex.lab.config.recipe import HeadsPart, Recipe, TrainPart
from mhex.lab.datasets import data_entry
from mhex.lab.datasets.catalogue import DataEntry
from mhex.lab.train.augment import Augment
from mhex.lab.train.networks import check_architecture

SHIPPABLE = ("timm", "minilm", "zoo")  # sources of networks that the zoo can build from a card


def check_recipe(recipe: Recipe, source: str) -> None:
    """Refuse a recipe that cannot be run.

    Args:
        recipe: Read from a file; types and limits of single keys are checked already.
        source: Name of the file, for messages.

    Raises:
        ArgumentError: One sentence that names the file and the key.
        MissingExtraError: A package that the recipe needs is not installed.
    """

    def refuse(words: str) -> ArgumentError:
        return ArgumentError(f"{source}: {words}")

    data = recipe.data
    try:
        entry = data_entry(data.name)
    except ArgumentError as error:
        raise refuse(f"data.name: {error}") from error
    if not entry.learnable:
        raise refuse(
            f"data.name: {entry.title} cannot be learned by a recipe, which trains classifiers on samples of one class "
            f"each; it is {'for judging alone' if entry.train is None else f'of {entry.task}'}."
        )
    if entry.kind == "image" and data.side is None:
        raise refuse("the key data.side is missing; expected the side of the input in pixels, since these are images.")
    if entry.kind == "text":
        if data.length is None:
            raise refuse("the key data.length is missing; expected the most tokens of a text, since these are texts.")
        for name in ("augment", "distil", "unlabelled"):
            if getattr(recipe, name) is not None:
                raise refuse(f"{name} is for images, and {data.name} holds texts: leave it out.")
    _check_splits(recipe, entry, refuse)
    check_architecture(recipe.model, source)
    if recipe.ship is not None and recipe.model.source not in SHIPPABLE:
        raise refuse(
            f"ship writes files that mhex.load reads, which knows networks of {', '.join(SHIPPABLE)} and not of "
            f"{recipe.model.source}: leave ship out, or take such a network."
        )
    if recipe.unlabelled is not None:
        _check_unlabelled(recipe, recipe.augment, refuse)
    if recipe.distil is not None and not recipe.distil.teachers:
        raise refuse("distil.teachers should name at least one recipe; leave distil out for none.")
    if recipe.name in recipe.needs:
        raise refuse(f"{recipe.name} cannot start from its own weights or teach itself.")
    if recipe.fit is None:
        _check_training(recipe, recipe.training, entry, refuse)
    else:
        _check_fit(recipe, refuse)


def _check_splits(recipe: Recipe, entry: DataEntry, refuse: Callable[[str], ArgumentError]) -> None:
    """Samples to learn from, to choose by and to judge by must be others."""
    data = recipe.data
    named = {"split": data.split or entry.train, "test": data.test or entry.test}
    validation = entry.validation if data.validation is None else data.validation
    if isinstance(validation, str):
        named["validation"] = validation
    for (one, split), (other, same) in combinations(named.items(), 2):
        if split == same or "all" in (split, same):
            raise refuse(
                f"data.{one} is {split} and data.{other} is {same}, which share samples: name splits that do not, so "
                "that nothing is judged by what was learned or chosen by."
            )


def _check_fit(recipe: Recipe, refuse: Callable[[str], ArgumentError]) -> None:
    """What must hold where heads are fitted."""
    if recipe.model.source != "zoo":
        raise refuse(f"fit needs a trained model, so model.source should be zoo, not {recipe.model.source}.")
    if recipe.heads is None:
        raise refuse("fit fits explainer heads, and the recipe has none; add the section heads.")
    if recipe.heads.preset != "probe" and recipe.heads.coupling != "head_only":
        raise refuse("heads.preset should be probe, so that fitted heads change no prediction of the model.")
    if not recipe.heads.classifier:
        raise refuse("heads.classifier: the classifier of the zoo's model answers; leave it true.")
    for name in ("start", "arguments", "extra"):
        if getattr(recipe.model, name):
            raise refuse(f"model.{name} does not go with fit, which leaves the model as it is: leave it out.")
    for name in ("augment", "distil", "unlabelled"):
        if getattr(recipe, name) is not None:
            raise refuse(f"{name} is for training, and heads are fitted here: leave it out.")


def _check_unlabelled(recipe: Recipe, changes: Augment | None, refuse: Callable[[str], ArgumentError]) -> None:
    """What must hold where nothing is told about the classes."""
    if recipe.model.source != "timm":
        raise refuse(
            f"unlabelled needs a network of timm, which can do without a classifier, not {recipe.model.source}."
        )
    for name, why in (
        ("heads", "explainer heads learn from labels"),
        ("distil", "teachers have learned from labels"),
        ("ship", "the network has no classifier; ship a probe that starts from it"),
    ):
        if getattr(recipe, name) is not None:
            raise refuse(f"{name} does not go with unlabelled: {why}. Leave it out.")
    if changes is None:
        raise refuse("unlabelled compares views of an image, which differ by augment alone: add the section augment.")
    if changes.cutmix or changes.mixup:
        raise refuse("augment.cutmix and augment.mixup should be 0 with unlabelled: a view shows one image.")
    settings = recipe.train
    if settings is None:
        return
    if settings.accumulate > 1:
        raise refuse(
            "train.accumulate should be 1 with unlabelled, which tells each image from all others of the batch: a "
            "slice has fewer of them. Lower train.batch, or use several processes, which share one batch."
        )
    if settings.batch < 2:
        raise refuse("train.batch should be at least 2 with unlabelled, which tells images from each other, not 1.")
    if settings.freeze != "none":
        raise refuse(
            f"train.freeze: {settings.freeze} does not go with unlabelled, which trains the body: leave it out."
        )
    if settings.smoothing:
        raise refuse("train.smoothing is about labels, and unlabelled reads none: leave it out.")
    if settings.early_stopping is not None:
        raise refuse("train.early_stopping needs labels to validate by, and unlabelled reads none: leave it out.")


def _check_answer(
    recipe: Recipe, heads: HeadsPart, settings: TrainPart, refuse: Callable[[str], ArgumentError]
) -> None:
    """The network's own classifier must learn, or be trained and stay as it is, if it is to answer."""
    answers = heads.classifier or heads.preset == "probe"
    learns = heads.classifier and settings.freeze != "host"
    trained = recipe.model.start is not None or recipe.model.source in ("zoo", "hf-folder")
    if answers and not learns and not (trained and settings.freeze == "host"):
        raise refuse(
            f"the network's own classifier answers with heads.preset: {heads.preset} and heads.classifier: "
            f"{str(heads.classifier).lower()}, but with train.freeze: {settings.freeze} nothing trains it: let it "
            "learn (heads.classifier: true, and train.freeze not host), or let the heads answer (heads.classifier: "
            "false with another preset than probe), or start from a trained network (model.start)."
        )


def _check_training(
    recipe: Recipe, settings: TrainPart, entry: DataEntry, refuse: Callable[[str], ArgumentError]
) -> None:
    """What must hold where a network is trained."""
    from timm.optim import list_optimizers

    require("tensorboard", "train")  # said here, not after the data are loaded
    if recipe.model.source == "zoo":
        raise refuse("model.source: a model of the zoo stays as it is; fit heads to it with the section fit.")
    if settings.optimizer not in (known := list_optimizers()):
        raise refuse(f"train.optimizer: {unknown_name('optimizer', settings.optimizer, known)}")
    if settings.batch % settings.accumulate:
        raise refuse(f"train.batch should be a multiple of train.accumulate, not {settings.batch}.")
    if settings.freeze == "host" and recipe.heads is None:
        raise refuse("train.freeze: host trains explainer heads alone, and the recipe has no heads; add the section.")
    if recipe.heads is not None:
        _check_answer(recipe, recipe.heads, settings, refuse)
    if settings.compile and recipe.heads is not None:
        raise refuse("train.compile does not go with heads, which read what passes through the network; set it false.")
    validated = entry.validation if recipe.data.validation is None else recipe.data.validation
    if settings.early_stopping is not None and not validated:
        raise refuse(
            "train.early_stopping needs a validation, and there is none: set data.validation to a share such as 0.1."
        )
