"""What must be known of a model before it is run: where its parts are, and what lives in it beside its own modules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from mhex.errors import CaptureError

if TYPE_CHECKING:
    from mhex.capture.outputs import Ending

Modality = Literal["image", "text"]
Readout = Literal["class", "class+distilled", "class+mean", "mean", "pool", "measured"]
Layout = Literal["nchw", "nhwc", "tokens"]
# Shares of the first tokens in what the head reads; patches or words have the rest, all alike.
_CLASS_SHARES = {"class": (1.0,), "class+distilled": (0.5, 0.5), "class+mean": (0.5,), "mean": ()}
Projection = Callable[[], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class Block:
    """One Transformer block: the modules whose inputs and outputs are worth seeing."""

    module: nn.Module  # the block itself; its first argument is the residual stream `X`
    norm1: nn.Module | None = None  # norm before the attention; None in post-norm models, where `X` itself enters it
    attention: nn.Module | None = None  # the part that calls the attention; None if it is not known
    unseen_norm: bool = False  # True if something else than `X` enters the attention, and no module gives it
    attention_output: nn.Module | None = None  # module whose output is the attention branch before it is added
    mlp_input: nn.Module | None = None  # module whose input is what enters the MLP
    mlp_output: nn.Module | None = None  # module whose output is the MLP branch before it is added
    key_projection: Projection | None = None  # returns `(W, b)` of the key projection; None if it is not affine
    value_projection: Projection | None = None  # returns `(W, b)` of the value projection, `W` of shape (H d, D)
    output_projection: Projection | None = None  # returns `(W, b)` of the output projection, `W` of shape (D, H d)
    attention_scale: Tensor | None = None  # LayerScale factor of the attention branch, (D,), where there is one
    mlp_scale: Tensor | None = None  # LayerScale factor of the MLP branch, (D,), where there is one


@dataclass(frozen=True)
class FeatureLayer:
    """The layer whose feature maps CAM methods read, and how its output is laid out."""

    module: nn.Module  # the layer
    layout: Layout | None  # channels first, channels last, or tokens; None to tell by the aspect ratio of the image
    name: str  # dotted name of the layer inside the model


@dataclass(frozen=True)
class Anatomy:
    """Everything that must be known of a model before it is run."""

    family: str  # human-readable name of the family, used in messages
    modality: Modality  # what the model takes
    blocks: tuple[Block, ...] = ()  # transformer blocks in order of execution; empty for CNNs
    prefix_tokens: int = 0  # tokens before the patches (class, distillation, registers); all are dropped from maps
    readout: Readout = "class"  # how the head reads the tokens (decides the read-out vector `w`)
    patch: tuple[int, int] | None = None  # height and width of a patch in pixels; None where there is no patch grid
    pads_image: bool = False  # True if images are padded up to whole patches by the model itself
    image_size: tuple[int, int] | None = None  # the only size the model takes; None if any (whole patches) will do
    channels: int | None = None  # image channels the model takes; None if unknown
    features: FeatureLayer | None = None  # default layer of the CAM methods
    embedding: nn.Module | None = None  # token embedding of a text model
    # Module whose input is the latent vector that the classifier reads; None if there is no classifier, or it is not
    # known, and the latent vector is what the model returns.
    head: nn.Module | None = None
    no_latent: str = ""  # why a model without `head` has no known latent vector; empty if what it returns is one
    sequence_first: bool = False  # True if the residual stream is (N, B, D); what methods see is (B, N, D) all the same
    no_attention: str = ""  # why the attention methods refuse the model; empty if they do not
    activation: str = ""  # the first of its activations, by its class, that is no ReLU; empty if none was seen
    positions_in_tokens: bool = False  # True if blocks know places by tokens alone, so that patches can be left out
    heads: int = 0  # how many of its modules carry heads of `mhex.attach`; itself, or a model that it wraps
    ending: Ending | None = None  # how it makes probabilities of logits; None if it returns logits, or was not asked
    opaque: str = ""  # the first of its parts whose operations cannot be seen one by one, by name; empty if none
    no_scores: str = ""  # why what it returns holds no class scores; empty if it does, or that is not known
    cuts_gradient: str = ""  # the first of its parts that passes no gradient on, by name; empty if none is known
    own_code: str = ""  # the first of its parts of an unknown library, by class: it may cut gradients; empty if none
    no_mask: bool = False  # True of token ids of which it is not known which one stands for a hidden word

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the patch grid for an image of this size."""
        if self.patch is None:
            raise CaptureError(f"The patch size of this {self.family} is not known, so its tokens form no grid.")
        if self.pads_image:
            return -(-height // self.patch[0]), -(-width // self.patch[1])
        return height // self.patch[0], width // self.patch[1]


def layout_of(shape: torch.Size, image: torch.Size) -> Layout | None:
    """How maps of four axes are laid out, by the aspect ratio of the images, (B, C, H, W); None for other tensors."""
    sides: dict[Layout, torch.Size] = {"nchw": shape[2:], "nhwc": shape[1:3]}
    maps = {layout: side for layout, side in sides.items() if min(side) > 1}
    skew = {layout: abs(math.log(image[2] / rows / (image[3] / columns))) for layout, (rows, columns) in maps.items()}
    best = min(skew, key=skew.__getitem__, default=None)
    # Odd sizes are rounded at every stride, so both sides are shrunk alike only roughly.
    return best if best is not None and skew[best] < 0.2 else None


def grid_of(tokens: int, image: torch.Size) -> tuple[int, int]:
    """Rows and columns of so many tokens that fill a grid of the shape of the image batch, (B, C, H, W)."""
    rows = round(math.sqrt(tokens * image[2] / image[3]))
    columns = 0 if rows == 0 else tokens // rows
    if rows * columns != tokens or rows * image[3] != columns * image[2]:
        size = f"{image[2]}x{image[3]}"
        raise CaptureError(f"Expected tokens in a grid of the shape of the {size} image, but {tokens} do not form one.")
    return rows, columns


def is_a(model: nn.Module, package: str, *names: str) -> bool:
    """True if the model's class, or one it derives from, has one of `names` and lives in `package`."""
    # Looking at names rather than importing the package keeps `import mhex` light.
    return any(c.__name__ in names and c.__module__.startswith(package) for c in type(model).__mro__)


def is_stock(model: nn.Module, package: str, *methods: str) -> bool:
    """True if these methods of the model are the package's own, not overridden by a class of the user's."""
    return all(getattr(type(model), name).__module__.startswith(package) for name in methods)


def first_of(model: nn.Module, *names: str) -> nn.Module:
    """The first submodule that exists among dotted `names` (module names move between library versions)."""
    for name in names:
        try:
            return model.get_submodule(name)
        except AttributeError:
            continue
    raise CaptureError(
        f"Expected {type(model).__name__} to have one of the submodules {list(names)}, but it has none of them; "
        "this version of the model's library is not supported."
    )


def linear_rows(layer: nn.Module, start: int = 0, stop: int | None = None, prefix: str = "") -> Projection:
    """Weight and bias of all or some output rows of a layer, read when asked for; their names begin with `prefix`."""

    def read() -> tuple[Tensor, Tensor | None]:
        weight, bias = getattr(layer, f"{prefix}weight"), getattr(layer, f"{prefix}bias")
        if not isinstance(weight, Tensor):
            raise CaptureError(f"Expected a linear layer, but {type(layer).__name__} has no weight.")
        return weight.detach()[start:stop], bias.detach()[start:stop] if isinstance(bias, Tensor) else None

    return read


def name_of(model: nn.Module, module: nn.Module) -> str:
    """Dotted name of `module` inside `model`."""
    return next((name for name, candidate in model.named_modules() if candidate is module), type(module).__name__)


def readout_vector(anatomy: Anatomy, spatial: Tensor, dtype: torch.dtype) -> Tensor:
    """The read-out vector `w`, (B, N), rows summing to 1: shares of tokens in what the head reads.

    `spatial`, bool (B, N), is True at patches or real words. The read-outs `"pool"` and `"measured"` need a pass.
    """
    if anatomy.readout not in _CLASS_SHARES:
        raise CaptureError(f"The read-out {anatomy.readout!r} is only known after a forward pass.")
    shares = _CLASS_SHARES[anatomy.readout]
    w = spatial.to(dtype) / spatial.sum(1, keepdim=True).clamp_min(1) * (1 - sum(shares))
    for token, share in enumerate(shares):
        w[:, token] += share
    return w


GUEST = "mhex"  # name of the guest inside its host


class Sighting(Protocol):
    """What a guest saw in one call of its host: class scores (B, n), and whether a sample may have several classes.

    Scores are those of what predicts: the host's own classifier, or heads that stand for it.
    """

    @property
    def logits(self) -> Tensor: ...
    @property
    def multi_label(self) -> bool: ...


@runtime_checkable
class Guest(Protocol):
    """What lives in a grafted model and wants to know of its calls.

    A call begins and finishes, after an error with the output None. While `recording`, a guest keeps everything that it
    sees in calls that this thread makes; while `aside`, nothing, and what it saw before is put aside. `sighting` is
    what it saw in the last call of this thread. `loaded` tells that a state was loaded into the model.
    """

    def begin(self, host: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None: ...
    def finish(self, host: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None: ...
    def loaded(self, host: nn.Module, keys: Any) -> None: ...
    def recording(self, host: nn.Module) -> AbstractContextManager[None]: ...
    def aside(self) -> AbstractContextManager[None]: ...
    def sighting(self) -> Sighting: ...


def guests(modules: Iterable[nn.Module]) -> list[tuple[nn.Module, Guest]]:
    """Hosts among `modules`, each with its guest."""
    # TorchScript, whose children are no dictionary, carries none.
    pairs = ((m, m._modules.get(GUEST)) for m in modules if isinstance(m._modules, dict))
    return [(host, guest) for host, guest in pairs if guest is not None and isinstance(guest, Guest)]
