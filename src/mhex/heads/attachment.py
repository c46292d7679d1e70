"""Putting heads on a model."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import torch
from torch import Tensor, nn

from mhex._settings import check_kind
from mhex.capture import Outputs, check_outputs, known_anatomy
from mhex.capture.batch import mask_arguments
from mhex.capture.hooks import follow_calls
from mhex.errors import ArgumentError, unknown_name, warn
from mhex.heads.explainer_block import Coupling, GateTarget, Preset, Relu, wide_dtype
from mhex.heads.files import read_heads
from mhex.heads.fold import Folded, FoldedBlock
from mhex.heads.heads import PREFIX, Heads, Settings, checked_classes, checked_model
from mhex.heads.scaffold import Scaffold
from mhex.heads.wiring.graft import graft_junctions, is_grafted, ungraft
from mhex.heads.wiring.residual import Junction, junctions_at, junctions_named, survey


def attach(
    model: nn.Module,
    num_classes: int | None = None,
    where: str | Sequence[str] | None = None,
    preset: Preset | None = None,
    coupling: Coupling | None = None,
    gate_target: GateTarget | None = None,
    relu: Relu | None = None,
    weights: str | Path | None = None,
    *,
    exclude_special: bool | None = None,
    multi_label: bool | None = None,
    outputs: Outputs | None = None,
) -> Scaffold:
    """Attach Multi-Head Explainer heads to the residual connections of a model, in place.

    The model keeps its class, its own parameter names and what it returns. The heads live in it as the submodule
    `mhex`: they train with the model's parameters, move with it and are saved with it, all under the prefix `mhex.`;
    weights of the plain model still load. `Scaffold.detach` takes everything off again.

    Args:
        model: A residual network: ResNet, ConvNeXt and other residual CNNs, BERT-like text encoders, ViT.
        num_classes: n. With `weights` it may be left out.
        where: Which connections: `"all"` (of a Transformer block, the one around its MLP; the default), `"downsample"`
            (shortcuts that shrink the map; fewer parameters and often better maps of early layers), `"projection"`
            (shortcuts with a layer of their own), `"first3"` (the first three that the model lists; any number),
            `"attention+mlp"` (both connections of Transformer blocks), or a list of unit names.
        preset: `"identity"` (the gate starts at exactly 1, so nothing changes until training changes it; the default),
            `"paper"` (starts near 0.5, for training from scratch), `"warmup"` (starts at 1 and becomes the published
            gate; call `Scaffold.ramp`), `"probe"` (stays at 1 for ever: predictions never change; see `Scaffold.fit`).
        coupling: `"shared"` (gate and head share `W1`; the default), `"separate"` or `"head_only"` (no gate).
        gate_target: Whether the gate multiplies the `"shortcut"` or the `"sum"`. By default the sum where a norm
            follows it (BERT), the shortcut elsewhere.
        relu: `"post"` (after pooling, the default) or `"pre"`.
        weights: File written by `Scaffold.save`; it carries the settings, so the other arguments are not needed, and
            refused if they differ from the file's.
        exclude_special: Leave class and separator tokens out of the pooling; they count by default.
        multi_label: A sample may have several classes; losses become binary cross-entropies. By default it has one.
        outputs: What the model returns, `"logits"` or `"probabilities"`, whose logits join the loss and predict. By
            default it is recognised by the sigmoid or softmax that the model ends in, as for `mhex.explain`.

    Returns:
        The scaffold: losses, per-head predictions, analysis, saving, removal.

    Example:
        >>> import torch, torchvision, mhex
        >>> model = torchvision.models.resnet18(num_classes=8)
        >>> scaffold = mhex.attach(model, 8)
        >>> _ = model(torch.rand(2, 3, 64, 64))
        >>> float(scaffold.loss(torch.tensor([3, 7]))) > 0
        True
    """
    model = checked_model(model)
    if any(is_grafted(module) for module in model.modules()):
        raise ArgumentError("The model carries heads already; call detach() on its scaffold first.")
    if any(isinstance(module, (Folded, FoldedBlock)) for module in model.modules()):
        raise ArgumentError("This is a folded model, for good; attach heads to the model that it was folded from.")
    if hasattr(model, PREFIX):
        raise ArgumentError(f"The model has an attribute {PREFIX!r} of its own, where its heads would live; rename it.")
    check_outputs(outputs)
    flags = {"exclude_special": exclude_special, "multi_label": multi_label}
    for flag, choice in flags.items():
        check_kind(flag, choice, (bool, NoneType))
    choices = {"preset": preset, "coupling": coupling, "gate_target": gate_target, "relu": relu, "outputs": outputs}
    settled = {**choices, **flags}.items()
    options: dict[str, Any] = {name: value for name, value in settled if value is not None}
    overview = survey(model)
    extras: dict[str, Any] = {}
    state: dict[str, Tensor] | None = None
    if weights is None:
        classes = checked_classes(num_classes)
        junctions = junctions_at(overview, "all" if where is None else where)
        settings = _new_settings(classes, junctions, options)
    else:
        settings, extras, state = read_heads(Path(weights))
        options |= {} if num_classes is None else {"num_classes": num_classes}
        junctions = junctions_named(overview, settings.junctions)
        stored = {name: getattr(settings, name) for name in options}
        if where is not None and {j.name for j in junctions_at(overview, where)} != set(settings.junctions):
            options, stored = {**options, "where": where}, {**stored, "where": [j.name for j in junctions]}
        for name, value in options.items():
            if value != stored[name]:
                raise ArgumentError(
                    f"Expected {name}={stored[name]!r} as in {weights}, but got {name}={value!r}; leave it out, or "
                    "attach new heads without weights=."
                )
        widths = dict(zip(settings.junctions, settings.channels, strict=True))
        if wrong := [j for j in junctions if j.meeting.channels != widths[j.name]]:
            words = f"{wrong[0].name} has {wrong[0].meeting.channels} channels, not {widths[wrong[0].name]}"
            raise ArgumentError(f"The heads in {weights} were made for another architecture: here {words}.")
    anatomy = known_anatomy(model)
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    prefix_tokens = 0 if anatomy is None or anatomy.modality == "text" else anatomy.prefix_tokens
    with torch.device("meta") if like.is_meta else nullcontext():  # nothing to draw for a model without weights
        heads = Heads(settings, prefix_tokens, junctions, mask_arguments(model))
    for name, value in extras.items():
        setattr(heads, name, value)
    heads.to(like.device, wide_dtype(like)).train(model.training)
    if state is not None:
        heads.restore(state)
    elif (size := sum(p.numel() for p in heads.parameters())) > 0.5 * sum(p.numel() for p in model.parameters()):
        warn(f"The heads have {size:,} parameters, more than half of the model; where='downsample' needs far fewer.")
    with ExitStack() as undo:  # a unit that cannot be rewritten leaves the model as it was
        undo.callback(ungraft, model)
        graft_junctions(model, junctions, heads.join)  # first: a unit that is the whole model may run all its children
        model.add_module(PREFIX, heads)
        undo.callback(model._modules.pop, PREFIX)
        follow_calls(model, heads)
        undo.pop_all()
    return Scaffold(model)


def _new_settings(num_classes: int, junctions: Sequence[Junction], options: Mapping[str, Any]) -> Settings:
    """Settings of new heads, with the options that the user gave."""
    if options.get("exclude_special") and all(j.kind == "map" for j in junctions):
        raise ArgumentError("The connections carry feature maps, without special tokens: leave exclude_special out.")
    options = {"gate_target": "sum" if all(j.meeting.normed for j in junctions) else "shortcut", **options}
    kinds = {"preset": Preset, "coupling": Coupling, "gate_target": GateTarget, "relu": Relu}
    for name, kind in kinds.items():
        if name in options and options[name] not in get_args(kind):
            raise unknown_name(name, str(options[name]), get_args(kind))
    names, widths = tuple(j.name for j in junctions), tuple(j.meeting.channels for j in junctions)
    return Settings(num_classes, names, widths, **options)
