"""Any model: one of no known family is watched in a forward pass to see where its features and attention are."""

import itertools
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mhex._settings import check_that
from mhex.capture.adapters.families import known_anatomy
from mhex.capture.anatomy import Anatomy, Block, FeatureLayer, Layout, guests, layout_of, name_of
from mhex.capture.batch import Batch
from mhex.capture.guard import model_failures, name_of_class, untouched
from mhex.capture.hooks import FunctionTap
from mhex.capture.inventory import inventory_of
from mhex.capture.outputs import find_scores, read_logits
from mhex.capture.precision import user_precision
from mhex.capture.threads import of_this_thread
from mhex.errors import UnsupportedModelError

Call = tuple[nn.Module, int]  # a module, and which of its calls
_PROJECTIONS = (nn.Linear, nn.MultiheadAttention)
# Modules whose outputs of four axes are feature maps. Dropout and LayerNorm are not among them: Transformers use them
# on attention matrices and heads, which have four axes too.
_SPATIAL = (
    nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.GroupNorm, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Hardswish,
)  # fmt: skip
# Modules of activations other than ReLU; those of Hugging Face have names of their own.
_SMOOTH = {
    *("GELU", "SiLU", "ELU", "SELU", "CELU", "LeakyReLU", "PReLU", "Mish", "Softplus", "Hardswish", "Tanh", "GLU"),
    *("LSTM", "GRU", "LSTMCell", "GRUCell", "PytorchGELUTanh", "GELUTanh"),
    *("GELUActivation", "NewGELUActivation", "FastGELUActivation", "QuickGELUActivation"),
}
_QUANTISED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")
_LIBRARIES = ("torch", "torchvision", "timm", "transformers", "mhex")  # whose modules pass gradients on
_LATENT = "Expected a latent vector that a last linear layer reads, but "


def find_anatomy(model: nn.Module, batch: Batch, attention: bool = True) -> Anatomy:
    """Anatomy of any unwrapped model; one of an unknown family is watched in a forward pass of the first sample.

    Unless `attention` will be read, an unknown model keeps its own kernel in that pass.
    """
    inventory = inventory_of(model)
    # Texts of which no token hides another.
    unmasked = batch.kwargs.get("input_ids") is not None and batch.mask_id is None and batch.pad_id is None

    def complete(anatomy: Anatomy) -> Anatomy:
        modules = inventory.modules(model)
        traits: dict[str, Any] = {trait: next(filter(None, map(name, modules)), "") for trait, name in _TRAITS.items()}
        no_mask = unmasked and getattr(anatomy.embedding, "padding_idx", None) is None
        return replace(anatomy, heads=len(guests(modules)), no_mask=no_mask, **traits)

    known = inventory.fact("family", lambda: known_anatomy(model))
    if known is not None:
        anatomy = inventory.fact(("anatomy", unmasked), lambda: complete(known))
    else:
        tensors: dict[Any, Any] = {**dict(enumerate(batch.args)), **batch.kwargs}
        shapes = [(name, x.shape[1:], x.dtype) for name, x in tensors.items() if isinstance(x, Tensor)]
        anatomy = inventory.fact(
            ("anatomy", unmasked, attention, batch.modality, *shapes),
            lambda: complete(generic_anatomy(model, batch, attention)),
            lambda anatomy: model not in (anatomy.head, anatomy.embedding, getattr(anatomy.features, "module", None)),
        )
    right, got = f"{anatomy.modality} inputs", f"{batch.modality} inputs"
    check_that(right == got, f"{right} for this {anatomy.family}", got)
    return anatomy


def generic_anatomy(model: nn.Module, batch: Batch, attention: bool = True) -> Anatomy:
    """What a forward pass shows of an unknown model.

    Blocks are the numbered children (of a `ModuleList` or `Sequential`) that follow one another and inside each of
    which attention ran once and over all tokens; the patch grid comes from a convolution whose kernel equals its
    stride. The features of the CAM methods are the last of the coarsest maps, of more than one pixel, that come out of
    a module with convolutions. A model that runs its first convolution several times (an ensemble of views, say) has
    neither, because the maps of one view are not those of the image. `attention` is that of `untouched`.
    """
    if isinstance(model, torch.jit.ScriptModule):
        hidden = "TorchScript shows nothing of its inside"
        return Anatomy(name_of_class(model), batch.modality, no_latent=f"{_LATENT}{hidden}.", no_attention=hidden)
    probe = _Probe(model, batch, attention)
    probe.run()
    anatomy = Anatomy(
        family=name_of_class(model),
        modality=batch.modality,
        channels=None if probe.first_convolution is None else probe.first_convolution.in_channels,
        features=probe.features(),
        embedding=probe.embedding,
        head=probe.head,
        no_latent=probe.no_latent,
        no_scores=probe.no_scores,
        no_attention="no block of it calls torch's scaled_dot_product_attention exactly once, over all tokens",
    )
    calls = probe.attending_blocks()
    if not calls:
        return anatomy
    prefix, patch = (1, None) if batch.modality == "text" else probe.patches(calls[0][0])
    if batch.modality == "image" and patch is None:
        return replace(anatomy, no_attention="its tokens cannot be told apart into a patch grid and prefix tokens")
    if batch.real is not None and probe.tokens != batch.real.shape[1]:
        return replace(anatomy, no_attention=f"it makes {probe.tokens} tokens of {batch.real.shape[1]}")
    return replace(
        anatomy,
        blocks=tuple(Block(call[0], probe.norms.get(call), unseen_norm=call in probe.unseen) for call in calls),
        prefix_tokens=prefix,
        readout="measured",
        patch=patch,
        sequence_first=probe.outputs[calls[-1][0], 1].shape[0] != 1,  # (N, B, D), of one sample
        no_attention="",
    )


class _Probe:
    """Notes, during one pass, which modules ran when, where attention was called and which maps were made.

    The first layer that takes a block's whole input and gives something else of the same shape, before the block
    attends, is its norm. A projection that takes the input itself shows that there is none; one that takes something
    else, that a norm cannot be seen.
    """

    def __init__(self, model: nn.Module, batch: Batch, attention: bool) -> None:
        self.model, self.attention, self.batch = model, attention, batch.first()
        self.running: list[nn.Module] = []
        self.calls: dict[nn.Module, int] = {}
        self.inputs: dict[Call, Tensor] = {}  # of numbered modules and their calls
        self.outputs: dict[Call, Tensor] = {}
        self.norms: dict[Call, nn.Module] = {}
        self.unseen: set[Call] = set()  # calls in which something stands before the attention, and no module gives it
        self.settled: set[Call] = set()  # calls of which the norm is known, or that have attended
        # For every attention: the numbered modules around it, outermost first, each with its call; shape of q k^T.
        self.attended: list[tuple[list[Call], tuple[int, int, int]]] = []
        self.maps: tuple[nn.Module, Layout] | None = None
        self.coarsest = 0  # number of pixels of the coarsest maps so far
        self.first_convolution: nn.Conv2d | None = None
        self.patch_convolution: nn.Conv2d | None = None
        self.embedding: nn.Embedding | None = None
        self.linear: tuple[nn.Linear, Tensor] | None = None  # the last one, and what it gave
        self.head: nn.Linear | None = None
        self.no_latent = self.no_scores = ""
        lists = [m for m in model.modules() if isinstance(m, (nn.ModuleList, nn.Sequential))]
        self.numbered = {child for parent in lists for child in parent.children()}
        self.spatial = {m for m in model.modules() if any(isinstance(part, _SPATIAL) for part in m.modules())}

    def run(self) -> None:
        with model_failures(self.model, self.batch), ExitStack() as stack:
            stack.enter_context(untouched(self.model, self.attention))
            for module in (m for m in self.model.modules() if not isinstance(m, torch.jit.ScriptModule)):
                stack.callback(module.register_forward_pre_hook(of_this_thread(self._enter)).remove)
                stack.callback(module.register_forward_hook(of_this_thread(self._leave)).remove)
            stack.enter_context(torch.no_grad())
            stack.enter_context(FunctionTap(self._attend))
            stack.enter_context(user_precision())
            output = self.model(*self.batch.args, **self.batch.kwargs)
        try:
            read_logits(output)
        except UnsupportedModelError as error:
            self.no_scores = str(error)
        scores = find_scores(output)
        if self.linear is None or scores is None or scores.shape != self.linear[1].shape:
            return
        layer, logits = self.linear
        activated = (logits.sigmoid(), logits.softmax(-1), logits.log_softmax(-1))
        if any(scores.equal(values) for values in (logits, *activated)):
            self.head = layer
        else:
            self.no_latent = (
                f"{_LATENT}the scores of this {type(self.model).__name__} are changed after its last linear layer; "
                "wrap the model to return that vector."
            )

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.running.append(module)
        self.calls[module] = self.calls.get(module, 0) + 1
        x = args[0] if args else None
        if isinstance(x, Tensor):
            if module in self.numbered:
                self.inputs[module, self.calls[module]] = x.clone()
            if isinstance(module, _PROJECTIONS):
                self._project(x)
        if self.first_convolution is None and isinstance(module, nn.Conv2d) and self.batch.modality == "image":
            self.first_convolution = module
            if x is not None:
                right = f"images of {module.in_channels} channels for this {type(self.model).__name__}"
                check_that(x.shape[1] == module.in_channels, right, x.shape[1])

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.running.pop()
        x = args[0] if args else None
        if isinstance(output, Tensor):
            if module in self.numbered:
                self.outputs[module, self.calls[module]] = output.clone()  # the model may write into it later
            if isinstance(x, Tensor) and not isinstance(module, _PROJECTIONS) and next(module.children(), None) is None:
                self._see_layer(module, x, output)
            if isinstance(module, nn.Linear):
                self.linear = (module, output)
            if self.batch.modality == "image" and module in self.spatial and output.dim() == 4:
                layout = layout_of(output.shape, self.batch.pixels.shape)
                area = output[0].numel() // output.shape[-1 if layout == "nhwc" else 1]
                if layout is not None and (self.maps is None or area <= self.coarsest):
                    self.maps, self.coarsest = (module, layout), area
        if isinstance(module, nn.Embedding) and self.embedding is None and isinstance(x, Tensor):
            ids = self.batch.kwargs.get("input_ids")
            # Laid out as in the batch: embeddings are read as (batch, tokens, width).
            if isinstance(ids, Tensor) and x.shape == ids.shape and x.equal(ids):
                self.embedding = module
        if isinstance(module, nn.Conv2d) and self.patch_convolution is None and module.kernel_size == module.stride:
            self.patch_convolution = module

    def _around(self) -> list[Call]:
        """The calls of numbered modules that run, outermost first."""
        return [(m, self.calls[m]) for m in self.running if m in self.numbered]

    def _unsettled(self, x: Tensor) -> list[Call]:
        """The calls around whose norm is not known yet, and whose input has the shape of `x`."""
        calls = [call for call in self._around() if call in self.inputs and call not in self.settled]
        return [call for call in calls if self.inputs[call].shape == x.shape]

    def _see_layer(self, layer: nn.Module, x: Tensor, output: Tensor) -> None:
        if output.shape != x.shape:  # packed projections that are no linear layers
            self._project(x)
        elif not output.equal(x):  # Dropout and the like change nothing
            for call in self._unsettled(x):
                if self.inputs[call].equal(x):
                    self.norms[call] = layer
                    self.settled.add(call)

    def _project(self, x: Tensor) -> None:
        for call in self._unsettled(x):
            self.settled.add(call)
            if not self.inputs[call].equal(x):
                self.unseen.add(call)

    def _attend(self, attend: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        around = self._around()
        self.settled.update(around)  # what comes after the attention does not matter
        samples = query.shape[0] if query.dim() == 4 else 0  # without an axis of heads it cannot be read
        self.attended.append((around, (samples, query.shape[-2], key.shape[-2])))
        result: Tensor = attend(query, key, value, *args, **kwargs)
        return result

    def features(self) -> FeatureLayer | None:
        """The feature maps of a convolutional network; None if blocks attend, or the image entered several times."""
        if self.maps is None or self.repeated() or any(around for around, _ in self.attended):
            return None
        module, layout = self.maps
        if module is self.first_convolution and module is self.patch_convolution:
            return None  # the patches of a Transformer or mixer, before anything was computed from them
        return FeatureLayer(module, layout, name_of(self.model, module))

    def repeated(self) -> bool:
        """True if the image entered the model several times."""
        return self.first_convolution is not None and self.calls[self.first_convolution] > 1

    @property
    def tokens(self) -> int:
        """Number of tokens N of the blocks."""
        return next(shape[2] for around, shape in self.attended if around)

    def attending_blocks(self) -> list[Call]:
        """The calls of blocks, in order: of the outermost numbered modules each call of which attended once."""
        inside = [around for around, _ in self.attended if around]
        shapes = {shape for around, shape in self.attended if around}
        # One sample, the same tokens throughout, every token a query: no windows, no late class token.
        if len(shapes) != 1 or (shape := next(iter(shapes)))[0] != 1 or shape[1] != shape[2]:
            return []
        for depth in range(min(map(len, inside))):
            calls = [around[depth] for around in inside]
            if len(set(calls)) == len(calls) and not self.repeated() and self._is_chain(calls, shape[2]):
                return calls
        return []

    def _is_chain(self, calls: list[Call], tokens: int) -> bool:
        """True if every call hands on a stream of all tokens, and takes what the one before it handed on."""
        if any(call not in self.inputs or call not in self.outputs for call in calls):
            return False
        if any(tuple(self.outputs[call].shape[:2]) not in ((1, tokens), (tokens, 1)) for call in calls):
            return False
        return all(self.inputs[after].equal(self.outputs[before]) for before, after in itertools.pairwise(calls))

    def patches(self, first_block: nn.Module) -> tuple[int, tuple[int, int] | None]:
        """Number of prefix tokens and the patch size; (0, None) if tokens and patches do not fit together."""
        # The first and the last patch are changed in a second pass: just the two tokens where they should be may
        # change.
        convolution, pixels = self.patch_convolution, self.batch.pixels
        if convolution is None:
            return 0, None
        height, width = convolution.kernel_size[0], convolution.kernel_size[1]
        count = (pixels.shape[-2] // height) * (pixels.shape[-1] // width)
        prefix = self.tokens - count
        if not 0 <= prefix < count:
            return 0, None
        changed = pixels.clone()
        changed[..., :height, :width] += 1
        changed[..., -height:, -width:] += 1
        second = _Probe(self.model, self.batch.with_input(changed), self.attention)
        second.run()
        before, after = (probe.inputs[first_block, 1].flatten(0, 1) for probe in (self, second))
        moved = (before != after).any(-1).nonzero()[:, 0].tolist()
        return (prefix, (height, width)) if moved == [prefix, prefix + count - 1] else (0, None)


def _smooth(module: nn.Module) -> str:
    """Name of an activation other than ReLU; empty for other modules."""
    if isinstance(module, nn.TransformerEncoderLayer):  # it keeps a function
        name = getattr(module.activation, "__name__", "")
        return "" if name == "relu" else name
    name = type(module).__name__
    return name if name in _SMOOTH else ""


def _scripted(module: nn.Module) -> str:
    """Name of a module of TorchScript; empty for other modules."""
    return name_of_class(module) if isinstance(module, torch.jit.ScriptModule) else ""


def _quantised(module: nn.Module) -> str:
    """Name of a layer that computes in whole numbers; empty for other modules, and for tables of such numbers."""
    kind = type(module)
    integer = kind.__module__.startswith(_QUANTISED) and "Embedding" not in kind.__name__
    return f"quantised layer {kind.__name__}" if integer else ""


def _unknown(module: nn.Module) -> str:
    """Name of a module that is of no known library, or was made of somebody's code by torch; else empty."""
    origin = type(module).__module__
    known = origin.partition(".")[0] in _LIBRARIES and not origin.startswith(("torch.fx", "torch.jit"))
    return "" if known else type(module).__name__


# What the modules of a model say of themselves.
_TRAITS = {"activation": _smooth, "opaque": _scripted, "cuts_gradient": _quantised, "own_code": _unknown}
