"""All heads of one model: the module that lives in it under the name `mhex`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from mhex._files import misfit_of
from mhex.capture import Outputs, unwrap
from mhex.capture.anatomy import GUEST
from mhex.capture.batch import first_and_last, kept_tokens, tells_padding
from mhex.capture.hooks import see_each
from mhex.capture.outputs import Ending, ending_in_graph
from mhex.errors import ArgumentError, ArgumentTypeError, CaptureError, warn
from mhex.heads.block import Coupling, ExplainerBlock, GateTarget, Preset, Relu, wide_dtype
from mhex.heads.call_record import Call, CallRecord, HeadReading, in_order
from mhex.heads.losses import check_labels
from mhex.heads.wiring.residual import unit_of

Source = Literal["classifier", "last_head", "sum"]
PREFIX = GUEST  # name of the heads inside their host, and prefix of their keys


@dataclass(frozen=True)
class Settings:
    """How a set of heads is built; saved with their weights.

    Attributes:
        num_classes: n.
        junctions: Names of the residual connections that carry a block, as the model is written; `Heads.names` has
            them in the order in which they run.
        channels: Width of each.
        preset: How the gates start.
        coupling: How gate and head share their matrix.
        gate_target: What the gate multiplies.
        relu: Whether the ReLU comes after or before the pooling.
        exclude_special: Whether class and separator tokens are left out of the pooling.
        multi_label: Whether a sample may have several classes.
        outputs: What the host returns; None if calls are to show it.
    """

    num_classes: int
    junctions: tuple[str, ...]
    channels: tuple[int, ...]
    preset: Preset = "identity"
    coupling: Coupling = "shared"
    gate_target: GateTarget = "shortcut"
    relu: Relu = "post"
    exclude_special: bool = False
    multi_label: bool = False
    outputs: Outputs | None = None

    def check_labels(self, labels: Tensor, batch: int) -> Tensor:
        """Labels of `batch` samples in the form that the losses take; see `mhex.heads.losses.check_labels`."""
        return check_labels(labels, batch, self.num_classes, self.multi_label)


def checked_classes(value: Any) -> int:
    """A number of classes, or an error that says what is wrong with it."""
    if value is None:
        raise ArgumentTypeError(
            "Expected num_classes, the number of classes of the heads; only heads that were saved bring it along: "
            "mhex.attach(model, weights='heads.safetensors')."
        )
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentTypeError(f"Expected num_classes to be a whole number, but got {value!r}.")
    if value < 1:
        raise ArgumentError(f"Expected at least one class, but got num_classes={value}.")
    return value


class Heads(nn.Module):
    """The blocks of one host, and what they share.

    Args:
        settings: How to build them.
        prefix_tokens: Tokens before the patches of a vision Transformer, for `exclude_special`.
        channels_last: Junctions whose maps are (B, H, W, C).
        branch_first: Junctions at which the host adds the shortcut to the branch, not the branch to the shortcut.
        mask_places: Arguments of the host that say which tokens are padding, from `mask_arguments`.
    """

    def __init__(
        self,
        settings: Settings,
        prefix_tokens: int = 0,
        channels_last: Collection[str] = (),
        branch_first: Collection[str] = (),
        mask_places: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.prefix_tokens = prefix_tokens
        self.mask_places = dict(mask_places or {})
        self.record = CallRecord()
        self.places = {name: number for number, name in enumerate(settings.junctions)}
        self.decay = 0.8  # of the running sum, as last used in a loss
        self.mode: Literal["pretrain", "finetune"] = "finetune"  # of the last loss
        self.joined = True  # whether the host's own classifier was a term of that loss
        self.source: Source | None = None  # what predicts; None decides by what there is
        self.frozen: tuple[str, ...] | None = None  # host parameters that `freeze_host` froze
        choices = settings.num_classes, settings.preset, settings.coupling, settings.gate_target, settings.relu
        self.blocks = nn.ModuleList(
            ExplainerBlock(width, *choices, name in channels_last, name in branch_first)
            for name, width in zip(settings.junctions, settings.channels, strict=True)
        )

    def forward(self, x: Any) -> Any:
        """Nothing: a host that runs all its children, as `nn.Sequential` does, runs past its heads."""
        return x

    def __getitem__(self, name: str) -> ExplainerBlock:
        """The block of a junction."""
        return cast(ExplainerBlock, self.blocks[self.places[name]])

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Load weights as `state_dict` gives them; stripped heads come back as they were."""
        for number, block in enumerate(self.blocks):
            for matrix in ("w1", "w2"):
                if f"blocks.{number}.{matrix}.weight" not in state:
                    setattr(block, matrix, None)
        try:
            self.load_state_dict(dict(state), strict=True)
        except RuntimeError as error:
            problems = misfit_of(self, state)
            raise ArgumentError(
                f"The weights of the heads do not fit their settings: {problems}; save them again."
            ) from error

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the junctions, first to last: in the order in which they ran, once the host was called."""
        return in_order(self.order, self.settings.junctions)

    @property
    def order(self) -> tuple[str, ...]:
        """Names of the blocks that ran in calls so far, in their order; saved with the heads."""
        return self.record.ran

    @order.setter
    def order(self, names: Sequence[str]) -> None:
        self.record.note(names, evaluated=True)

    def named_blocks(self) -> Mapping[str, ExplainerBlock]:
        """Blocks by name of their junction, first to last."""
        return {name: self[name] for name in self.names}

    def freeze(self, host: nn.Module) -> None:
        """Freeze the host's own parameters and the running statistics of its norms."""
        if self.frozen is not None:
            return
        heads = set(self.parameters())
        trainable = {name: p for name, p in host.named_parameters() if p.requires_grad and p not in heads}
        for parameter in trainable.values():
            parameter.requires_grad_(False)
        _hold_norms(host)
        self.frozen = tuple(trainable)

    def thaw(self, host: nn.Module) -> None:
        """Undo `freeze`: what was trainable before trains again, norms follow the mode of the host."""
        if self.frozen is None:
            return
        for name in self.frozen:
            host.get_parameter(name).requires_grad_(True)
        for norm in _running_norms(host):
            norm.training = host.training
        self.frozen = None

    def ramp(self, step: int, steps: int, share: float) -> None:
        """Set `lambda` of the gates of preset `"warmup"` to `min(1, step / (share * steps))`; see `Scaffold.ramp`."""
        _check_real("step", step, "a step of training, counted from 0", 0)
        _check_real("steps", steps, "the number of all steps of training, at least 1", 1)
        _check_real("share", share, "the part of the steps in which the gate changes, from 0 to 1", 0, 1)
        if self.settings.preset == "warmup" and self.settings.coupling != "head_only":
            for block in self.named_blocks().values():
                block.strength.fill_(min(1.0, step / max(1.0, share * steps)))

    # --- what the host's forward calls ---------------------------------------------------------------------------

    def begin(self, host: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A call of the host begins. In a replica, `host` is the replica and its heads serve the call."""
        if self.frozen is not None:
            _hold_norms(host)
        masks = {name: mask for name, mask in kwargs.items() if tells_padding([name])}
        masks.update({name: args[place] for name, place in self.mask_places.items() if place < len(args)})
        special = None
        if self.settings.exclude_special and not self.prefix_tokens:
            special = _special(kwargs.get("input_ids", args[0] if args else None), masks)
        # Position numbers for all samples have the first size 1, images and texts B.
        rows = frozenset(v.shape[0] for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.dim())
        self.record.begin(Call(required_heads(host), torch.is_grad_enabled(), special, rows, masks))

    def finish(self, host: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        """The call is over."""
        self.record.finish(output, host.training)

    def loaded(self, host: nn.Module, keys: Any) -> None:
        """The host's own weights may be loaded without those of the heads, which then stay as they are."""
        names = set(self.state_dict(prefix=f"{PREFIX}."))
        if names <= set(keys.missing_keys):
            keys.missing_keys[:] = [key for key in keys.missing_keys if key not in names]

    @contextmanager
    def recording(self, host: nn.Module, nudge: bool = False) -> Iterator[None]:
        """Keep everything that the blocks compute in calls of `host` that this thread makes meanwhile.

        Args:
            host: The model that carries these heads.
            nudge: Whether to add zeros to every `u`, to which gradients can be taken (`Call.nudges`).
        """
        with ExitStack() as stack:
            stack.enter_context(self.record.recording(nudge))
            for name in self.settings.junctions:
                if ":" not in name:  # the unit's output is that of its last addition
                    see_each(stack, [host.get_submodule(unit_of(name))], partial(self._returned, name))
            yield

    def aside(self) -> AbstractContextManager[None]:
        """Keep this thread's last call as it is, whatever calls are made meanwhile."""
        return self.record.aside()

    def sighting(self) -> HeadReading:
        """What the heads said in the last call of this thread."""
        return HeadReading(self.record.required_last(), self)

    def settled_source(self) -> Source | None:
        """What predicts, whatever the host returns; None if it depends on that."""
        # Gates that learn change what the classifier reads: left out of the loss, it has not followed.
        follows = self.joined or self.settings.preset == "probe"
        return self.source if self.source is not None or follows else self.head_source()

    def ending_of(self, scores: Tensor) -> Ending | None:
        """How the host makes probabilities of its logits: as the user says, or as its calls show.

        Args:
            scores: What the host returned, (B, n); its graph, if there is one, tells.
        """
        unseen = self.settings.outputs is None and self.record.ending == "unseen"
        if unseen and scores.grad_fn is not None and not torch.compiler.is_compiling():
            self.note_ending(ending_in_graph(scores))
        return self.ending

    @property
    def ending(self) -> Ending | None:
        """How the host makes probabilities of its logits, as far as it is known."""
        if self.settings.outputs is not None:
            single = self.settings.multi_label or self.settings.num_classes == 1
            return None if self.settings.outputs == "logits" else Ending("sigmoid" if single else "softmax")
        return None if self.record.ending == "unseen" else self.record.ending

    def note_ending(self, ending: Ending | None) -> None:
        """Take in how the host makes probabilities of its logits, and tell the user once."""
        shares = ending is not None and ending.kind != "log_softmax"  # logarithms of probabilities are logits
        self.record.ending = ending if shares else None
        if ending is not None and shares:
            warn(
                f"The model ends in a {ending.kind}, so the logits of its classifier are computed from its "
                "probabilities. Give mhex.attach(..., outputs='probabilities') to confirm it, or outputs='logits' to "
                "read its outputs as they are."
            )

    def head_source(self) -> Source:
        """What predicts where the host's own classifier does not."""
        return "sum" if self.mode == "pretrain" else "last_head"

    def _returned(self, name: str, output: Tensor) -> None:
        if (call := self.record.current()) is not None:
            call.outputs[name] = output
            call.mark(name, output=output)

    def join(self, name: str, x: Tensor, r: Tensor, masks: Mapping[str, Any]) -> Tensor:
        """Stands where the host adds `x` and `r`."""
        call = self.record.current()
        block = (self if call is None or call.heads is None else call.heads)[name]
        keep = self._keep(name, x, masks, call)
        nudge = None
        if call is not None and call.nudged:
            nudge = torch.zeros(x.shape[0], block.channels, device=x.device, dtype=wide_dtype(x), requires_grad=True)
            call.nudges[name] = nudge
        joined: Tensor
        joined, seen = block(x, r, keep, nudge)
        if call is not None:
            call.check_rows(name, x)
            if name in call.ran:
                raise CaptureError(
                    f"{name} ran twice in one forward pass, and one head cannot serve both (a layer that is shared, as "
                    "in ALBERT); leave it out with where=[...]."
                )
            call.ran.append(name)
            if seen.logits is not None:
                call.logits[name] = seen.logits
            if call.recorded:
                call.blocks[name] = seen
                call.mark(name, shortcut=x, branch=r)
        return joined

    def _keep(self, name: str, x: Tensor, masks: Mapping[str, Any], call: Call | None) -> Tensor | None:
        """Weights (B, T) of the tokens in the pooling; None for all alike."""
        if x.dim() != 3:
            return None
        keep, above = kept_tokens(masks, {} if call is None else call.masks, x.shape[0], x.shape[1], name)
        if above and name not in self.record.masked_above:
            self.record.masked_above = (*self.record.masked_above, name)
        if call is None and name in self.record.masked_above:
            raise CaptureError(
                f"{name} must see the mask that the whole model is called with, but runs outside of such a call (or is "
                "recomputed by activation checkpointing); hand the unit its attention_mask, or leave it out."
            )
        if not self.settings.exclude_special:
            return keep
        if self.prefix_tokens:
            special = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2]) < self.prefix_tokens
        elif call is not None and call.special is not None:
            special = call.special
        else:
            raise CaptureError(
                "exclude_special=True must see the token ids, but the unit runs outside of a call of the whole model "
                "(or is recomputed by activation checkpointing); attach with exclude_special=False."
            )
        return ~special if keep is None else keep & ~special


def _running_norms(host: nn.Module) -> Iterator[nn.Module]:
    """Norms with running statistics; in evaluation mode their buffers do not move."""
    return (module for module in host.modules() if module._buffers.get("running_mean") is not None)


def _hold_norms(host: nn.Module) -> None:
    """Put norms with running statistics in evaluation mode, where they are not yet."""
    for norm in _running_norms(host):
        if norm.training:
            norm.training = False


def _check_real(name: str, value: Any, meaning: str, low: float, high: float = float("inf")) -> None:
    if not isinstance(value, Real) or value is True or value is False:
        raise ArgumentTypeError(f"Expected {name} to be {meaning}, but got {value!r}.")
    if not low <= float(value) <= high:  # also where it is not a number
        raise ArgumentError(f"Expected {name} to be {meaning}, but got {name}={value!r}.")


def _special(ids: Any, masks: Mapping[str, Any]) -> Tensor:
    if not isinstance(ids, Tensor) or ids.is_floating_point():
        raise CaptureError("exclude_special=True must see token ids: call the model with input_ids.")
    real, _ = kept_tokens({}, masks, ids.shape[0], ids.shape[1], "the model")
    return first_and_last(ids, torch.ones_like(ids, dtype=torch.bool) if real is None else real)


def checked_model(model: Any) -> nn.Module:
    """A model without its wrappers, or an error that tells an object apart that holds one, as a bundle does."""
    if isinstance(model, nn.Module):
        return unwrap(model)
    holds = isinstance(getattr(model, "model", None), nn.Module)
    advice = "; pass the model that it holds, its attribute .model (bundle.model)" if holds else ""
    raise ArgumentTypeError(f"Expected a torch.nn.Module, but got {type(model).__name__}{advice}.")


def heads_of(model: nn.Module) -> Heads | None:
    """The heads that a model carries, or None."""
    heads = model._modules.get(PREFIX)
    return heads if isinstance(heads, Heads) else None


def required_heads(model: nn.Module) -> Heads:
    """The heads that a model carries, or an ArgumentError."""
    if (heads := heads_of(model)) is None:
        raise ArgumentError("The model carries no heads; attach some with mhex.attach(model, num_classes).")
    return heads
