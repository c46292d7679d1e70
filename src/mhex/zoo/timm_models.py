"""Any timm architecture, with your weights or with random ones."""

import difflib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mhex.bundle import Bundle
from mhex.errors import ArgumentError, require, unknown_name
from mhex.inputs.preprocess import FILTERS, Preprocess
from mhex.zoo.files import fill, read_weights


def load_timm(name: str, weights: str | None = None) -> Bundle:
    """Build a timm model and fill it with the weights of a safetensors file; without one, its weights are random.

    The name is one of `timm.list_models()`; `architecture.tag` takes the tag's input size and normalisation.
    """
    timm = require("timm")
    _check_name(timm, name)
    card: dict[str, Any] = {"name": f"timm:{name}", "modality": "image", "architecture": name, "weights": "random"}
    if weights is None:
        model = _build(timm, name)
        card["warning"] = (
            f"timm:{name} was given without weights, so its weights are random and its explanations mean nothing; "
            f"give weights with timm:{name}:weights.safetensors."
        )
    else:
        path = Path(weights).expanduser()
        tensors = read_weights(path)
        model = _build(timm, name, _classes(timm, name, tensors))
        fill(model, tensors, str(path))
        card["weights"] = str(path)
    if not getattr(model, "num_classes", 0):
        raise ArgumentError(
            f"timm:{name} has no classifier of its own, so there is no class to explain; give weights that hold one "
            f"with timm:{name}:weights.safetensors, or choose another model."
        )
    card |= {"classes": model.num_classes, "parameters": sum(p.numel() for p in model.parameters())}
    full = f"timm:{name}" if weights is None else f"timm:{name}:{weights}"
    return Bundle(name=full, model=model.eval(), preprocess=_preprocess(timm, model), card=card)


def _check_name(timm: Any, name: str) -> None:
    """Refuse names that are not in timm's list: timm would take them for hub addresses or folders."""
    if name in timm.list_models() or name in timm.list_models(pretrained=True):
        return
    tagged = timm.list_models(f"{name.split('.')[0]}.*", pretrained=True) if "." in name else []
    names = tagged or timm.list_models()
    if not difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5):
        # Over a thousand names exist: listing them would help nobody.
        raise ArgumentError(f"Unknown timm model {name!r}, and no name is near it; timm.list_models() lists them.")
    raise unknown_name("timm model", name, names)


def _build(timm: Any, name: str, classes: int | None = None) -> Any:
    """A model with random weights, the same ones every time; the global generator is left alone."""
    arguments = {} if classes is None else {"num_classes": classes}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return timm.create_model(name, pretrained=False, **arguments)


def _classes(timm: Any, name: str, tensors: dict[str, Tensor]) -> int | None:
    """Number of classes by the classifier's weight; None if the file holds none, which the key check then reports."""
    classifier = timm.models.get_pretrained_cfg(name).classifier
    first = classifier if isinstance(classifier, str) or classifier is None else classifier[0]
    weight = tensors.get(f"{first}.weight")
    return None if weight is None or weight.dim() == 0 else int(weight.shape[0])


def _preprocess(timm: Any, model: nn.Module) -> Preprocess:
    """Size, filter and normalisation of timm's own data configuration, without its centre crop."""
    config = timm.data.resolve_model_data_config(model)
    _, height, width = config["input_size"]
    interpolation = config["interpolation"] if config["interpolation"] in FILTERS else "bicubic"
    return Preprocess(height, width, config["mean"], config["std"], interpolation)
