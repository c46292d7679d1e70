"""All heads of one model: the module that lives in it under the name `mhex`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from mhex._files import misfit_of
from mhex.capture import Outputs, unwrap
from mhex.capture.anatomy import GUEST
from mhex.capture.batch import first_and_last, kept_tokens, tells_padding
from mhex.capture.hooks import see_each
from mhex.capture.outputs import Ending, ending_in_graph
from mhex.errors import ArgumentError, ArgumentTypeError, CaptureError, some_of, warn
from mhex.heads.call_record import Call, CallRecord, HeadReading, in_order
from mhex.heads.explainer_block import Coupling, ExplainerBlock, GateTarget, Preset, Relu, wide_dtype
from mhex.heads.losses import check_labels
from mhex.heads.wiring.residual import Junction, unit_of

Source = Literal["classifier", "last_head", "sum"]
PREFIX = GUEST  # name of the heads inside their host, and prefix of their keys


@dataclass(frozen=True)
class Settings:
    """How a set of heads is built; saved with their weights."""

    num_classes: int  # n
    junctions: tuple[str, ...]  # names of the residual connections that carry a block, as the model is written
    channels: tuple[int, ...]  # width of each
    preset: Preset = "identity"  # how the gates start
    coupling: Coupling = "shared"  # how gate and head share their matrix
    gate_target: GateTarget = "shortcut"  # what the gate multiplies
    relu: Relu = "post"  # whether the ReLU comes after or before the pooling
    exclude_special: bool = False  # whether class and separator tokens are left out of the pooling
    multi_label: bool = False  # whether a sample may have several classes
    outputs: Outputs | None = None  # what the host returns; None if calls are to show it

    @property
    def binary(self) -> bool:
        """Whether every class is a yes-or-no question of its own."""
        return self.multi_label or self.num_classes == 1

    def check_labels(self, labels: Tensor, batch: int) -> Tensor:
        """Labels of `batch` samples in the form that the losses take; see `mhex.heads.losses.check_labels`."""
        return check_labels(labels, batch, self.num_classes, self.multi_label)


def checked_classes(value: Any) -> int:
    """A number of classes, or an error that says what is wrong with it."""
    if value is None:
        raise ArgumentTypeError("Expected num_classes, the number of classes; only heads from weights= bring it along.")
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentTypeError(f"Expected num_classes to be a whole number, but got {value!r}.")
    if value < 1:
        raise ArgumentError(f"Expected at least one class, but got num_classes={value}.")
    return value


class Heads(nn.Module):
    """The blocks of one host, and what they share.

    `prefix_tokens` stand before the patches of a vision Transformer. `junctions` say how tensors lie in memory.
    `mask_places` are arguments of the host that say which tokens are padding, from `mask_arguments`.
    """

    def __init__(
        self,
        settings: Settings,
        prefix_tokens: int = 0,
        junctions: Sequence[Junction] = (),
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
        channels_last = {junction.name for junction in junctions if junction.meeting.channels_last}
        branch_first = {junction.name for junction in junctions if junction.meeting.branch_first}
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
            words = f"The weights of the heads do not fit their settings: {misfit_of(self, state)}"
            raise ArgumentError(f"{words}; save them again.") from error

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

    def last_name(self) -> str:
        """Name of the block that runs last; a CaptureError before a call has shown it."""
        if not self.order and len(self.places) > 1:
            raise CaptureError("It is not known yet which head runs last: call the model once.")
        return (self.order or self.names)[-1]

    def check_whole(self, consequence: str, names: Sequence[str] = ()) -> None:
        """Refuse what the class matrices of some heads, or of all, are read for, where one was stripped."""
        if stripped := [name for name in names or self.names if self[name].w2 is None]:
            names = some_of(stripped, 3)
            raise CaptureError(f"The heads at {names} were stripped, so {consequence}; attach heads again.")

    def strip(self, source: Source) -> int:
        """Strip the heads as `Scaffold.strip_heads` does; `source`, which predicts, is settled for good."""
        before = sum(p.numel() for p in self.parameters())
        last = self.last_name() if source == "last_head" else None
        if last is not None:
            self.check_whole("the last one cannot predict", [last])
        if source == "sum":
            warn("Nothing can be stripped: predictions come from the sum of all heads, which reads every matrix.")
            return 0
        for name, block in self.named_blocks().items():
            if name != last:
                block.w2, block.intercept = None, None
            read = block.w2 is not None and block.coupling == "shared"
            if block.gate_state() == "off" and not read:
                block.w1 = None
        self.source = source
        self.record.forget()
        return before - sum(p.numel() for p in self.parameters())

    def reset_classes(self, num_classes: int) -> None:
        """Give every block a new class matrix, drawn as at the start; the gates' matrices stay."""
        checked_classes(num_classes)
        blocks = self.named_blocks()
        bare = [name for name, block in blocks.items() if block.w1 is None and block.coupling != "head_only"]
        if bare:
            raise ArgumentError(f"{bare[0]} was stripped of its first matrix, so it cannot learn; attach new heads.")
        for block in blocks.values():
            like = block.strength if block.w1 is None else block.w1.weight
            fresh = nn.Linear(block.channels, num_classes, bias=False)
            block.w2, block.intercept = fresh.to(like.device, like.dtype).train(block.training), None
        self.settings = replace(self.settings, num_classes=num_classes)
        self.source, self.mode, self.decay, self.joined = None, "finetune", 0.8, True
        self.record.forget()

    # --- what the host's forward calls ---------------------------------------------------------------------------

    def begin(self, host: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A call of the host begins. In a replica, `host` is the replica and its heads serve the call."""
        if self.frozen is not None:
            set_norms(host, training=False)
        masks = {name: mask for name, mask in kwargs.items() if tells_padding([name])}
        masks.update({name: args[place] for name, place in self.mask_places.items() if place < len(args)})
        special = None
        if self.settings.exclude_special and not self.prefix_tokens:
            special = _special(kwargs.get("input_ids", args[0] if args else None), masks)
        # Position numbers for all samples have the first size 1, images and texts B.
        rows = frozenset(v.shape[0] for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.dim())
        self.record.begin(Call(required_heads(host), torch.is_grad_enabled(), special, rows, masks))

    def finish(self, host: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        """Close the record of the call."""
        self.record.finish(output, host.training)

    def loaded(self, host: nn.Module, keys: Any) -> None:
        """The host's own weights may be loaded without those of the heads, which then stay as they are."""
        names = set(self.state_dict(prefix=f"{PREFIX}."))
        if names <= set(keys.missing_keys):
            keys.missing_keys[:] = [key for key in keys.missing_keys if key not in names]

    @contextmanager
    def recording(self, host: nn.Module, nudge: bool = False) -> Iterator[None]:
        """Keep all that blocks compute in calls of `host` by this thread; for `nudge` see `CallRecord.recording`."""
        with self.record.recording(nudge), ExitStack() as stack:
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
        """How the host makes probabilities of its logits, as the user or the graph of its `scores` (B, n) says."""
        unseen = self.settings.outputs is None and self.record.ending == "unseen"
        if unseen and scores.grad_fn is not None and not torch.compiler.is_compiling():
            self.note_ending(ending_in_graph(scores))
        return self.ending

    @property
    def ending(self) -> Ending | None:
        """How the host makes probabilities of its logits, as far as it is known."""
        if self.settings.outputs == "probabilities":
            return Ending("sigmoid" if self.settings.binary else "softmax")
        return None if self.settings.outputs == "logits" or self.record.ending == "unseen" else self.record.ending

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
        total: Tensor
        total, output = block(x, r, keep, nudge)
        if call is not None:
            if call.rows and x.shape[0] not in call.rows:
                raise CaptureError(
                    f"Expected {' or '.join(map(str, sorted(call.rows)))} samples along the first axis at {name}, as "
                    f"in the inputs, but its tensors have the shape {tuple(x.shape)}: no head serves patches or "
                    "choices that are folded into the batch; leave the unit out with where=[...]."
                )
            if name in call.ran:
                raise CaptureError(f"{name} ran twice in one pass (a shared layer?); leave it out with where=[...].")
            call.ran.append(name)
            if output.logits is not None:
                call.logits[name] = output.logits
            if call.recorded:
                call.blocks[name] = output
                call.mark(name, shortcut=x, branch=r)
        return total

    def _keep(self, name: str, x: Tensor, masks: Mapping[str, Any], call: Call | None) -> Tensor | None:
        """Weights (B, T) of the tokens in the pooling; None for all alike."""
        if x.dim() != 3:
            return None
        keep, above = kept_tokens(masks, {} if call is None else call.masks, x.shape[0], x.shape[1], name)
        if above and name not in self.record.masked_above:
            self.record.masked_above = (*self.record.masked_above, name)
        special = None if call is None else call.special
        if self.settings.exclude_special and self.prefix_tokens:
            special = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2]) < self.prefix_tokens
        lost = "mask" if call is None and name in self.record.masked_above else ""
        lost = "token ids" if self.settings.exclude_special and special is None else lost
        if lost:
            raise CaptureError(
                f"{name} must see the {lost} of the whole model's call, but runs outside of one (or is recomputed by "
                "activation checkpointing); hand the unit its attention_mask, attach with exclude_special=False, or "
                "leave it out."
            )
        if special is None:
            return keep
        return ~special if keep is None else keep & ~special


def set_norms(host: nn.Module, training: bool) -> None:
    """Put norms with running statistics, which move in training mode alone, in a mode where they are not in it yet."""
    for norm in host.modules():
        if norm._buffers.get("running_mean") is not None and norm.training != training:
            norm.training = training


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
    heads = getattr(model, PREFIX, None)
    return heads if isinstance(heads, Heads) else None


def required_heads(model: nn.Module) -> Heads:
    """The heads that a model carries, or an ArgumentError."""
    if (heads := heads_of(model)) is None:
        raise ArgumentError("The model carries no heads; attach some with mhex.attach(model, num_classes).")
    return heads
