"""One block of the Multi-Head Explainer: a matrix that gates a shortcut and, times another, predicts the class."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mhex.capture import full
from mhex.errors import ArgumentError, CaptureError

Preset = Literal["identity", "paper", "warmup", "probe"]
Coupling = Literal["shared", "separate", "head_only"]
GateTarget = Literal["shortcut", "sum"]
Relu = Literal["post", "pre"]
# "none": no matrix; "off": lambda is 0; "one": W1 is 0 and so the gate 1; "constant": W1 is 0; "active"; "unknown": on
# the meta device.
GateState = Literal["none", "off", "one", "constant", "active", "unknown"]


@dataclass(frozen=True)
class BlockOutput:
    """What a block computes at one junction."""

    logits: Tensor | None  # class scores of the head, (B, n); None after `strip_heads`
    shortcut: Tensor  # `x`, (B, C, H, W), (B, H, W, C) or (B, T, C)
    branch: Tensor  # `r`, in the same shape
    pooled: Tensor  # `p`, the pooled sum before the ReLU, (B, C); with `relu="pre"` it is pooled after it
    features: Tensor  # what the head's matrix multiplies, (B, C): `W_eq @ features` are the logits
    gate: Tensor  # `g`, (B, C)
    keep: Tensor | None  # weight of each token in the pooling, (B, T); None if all count


class ExplainerBlock(nn.Module):
    """Gate and head of one residual connection (Sun and Lio, Multi-Head Explainer, 2025).

    With `z = x + r`, `h = ReLU(mean(z))` and `u = W1 h`, the gate is `(1 - lambda) + lambda * kappa * sigmoid(u)` and
    the class scores are `W2 u`. The options are those of `mhex.attach`; with `channels_last` maps are (B, H, W, C), and
    with `branch_first` the host adds the shortcut to the branch.
    """

    strength: Tensor
    intercept: Tensor | None
    fixed = False  # whether the gate is 1 for ever

    def __init__(
        self,
        channels: int,
        num_classes: int,
        preset: Preset = "identity",
        coupling: Coupling = "shared",
        gate_target: GateTarget = "shortcut",
        relu: Relu = "post",
        channels_last: bool = False,
        branch_first: bool = False,
    ) -> None:
        super().__init__()
        self.channels, self.coupling, self.gate_target, self.relu = channels, coupling, gate_target, relu
        self.channels_last, self.branch_first = channels_last, branch_first
        self.fixed = preset == "probe"
        self.kappa = 2 if preset == "identity" else 1
        gated = coupling != "head_only"
        self.w1 = nn.Linear(channels, channels, bias=False) if gated else None
        self.w2: nn.Linear | None = nn.Linear(channels, num_classes, bias=False)
        if self.w1 is not None and preset == "identity":
            nn.init.zeros_(self.w1.weight)
        # lambda; a buffer, so that a ramp neither recompiles a compiled model nor is lost in a checkpoint.
        self.register_buffer("strength", torch.tensor(1.0 if preset in ("identity", "paper") and gated else 0.0))
        self.register_buffer("intercept", None)  # of heads fitted in closed form, (n,)

    def equivalent_matrix(self) -> Tensor:
        """`W_eq`, (n, C), at least float32: class scores are `W_eq @ features`."""
        if self.w2 is None:
            raise CaptureError("The heads were stripped, so there is no class matrix left; attach them again.")
        w2 = full(self.w2.weight)
        return w2 @ full(self.w1.weight) if self.coupling == "shared" and self.w1 is not None else w2

    def gate_state(self) -> GateState:
        """What the gate does; with "none", "off" and "one" it is exactly 1 and leaves the model as it is."""
        if self.w1 is None:
            return "none"
        if self.strength.is_meta:
            return "unknown"
        if (strength := float(self.strength)) == 0:
            return "off"
        if bool(self.w1.weight.any()):
            return "active"
        return "one" if (1 - strength) + strength * self.kappa * 0.5 == 1 else "constant"

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """Intercepts come and go with the heads that are loaded; gates that are 1 for ever cannot be turned on."""
        strength = state_dict.get(f"{prefix}strength")
        if self.fixed and strength is not None and not strength.is_meta and bool(strength.any()):
            raise ArgumentError(
                f"Expected gates that are off: preset='probe' keeps every gate at exactly 1, and {prefix}strength is "
                f"{float(strength):g}; attach heads with the preset that this state was trained with, then load it."
            )
        intercept = state_dict.get(f"{prefix}intercept")
        if intercept is not None:
            self.intercept = torch.empty_like(intercept, device=self.strength.device)
        elif f"{prefix}w2.weight" in state_dict:
            self.intercept = None
        super()._load_from_state_dict(state_dict, prefix, *args)

    def forward(
        self, x: Tensor, r: Tensor, keep: Tensor | None = None, nudge: Tensor | None = None
    ) -> tuple[Tensor, BlockOutput]:
        """What flows on instead of the sum of shortcut `x` and branch `r`, and everything computed on the way.

        Both are (B, C, H, W), (B, H, W, C) or (B, T, C). `keep` (B, T) weighs the tokens in the pooling; `nudge` (B, C)
        is a zero that is added to `u`, so that gradients can be taken to it.
        """
        axis = channel_axis(x, self.channels, self.channels_last)
        # Autocast would pool and multiply in half precision, where a mean over many positions loses its digits.
        with torch.autocast(x.device.type, enabled=False):
            pooled, hidden = pooled_sum(x, r, axis, keep, self.relu)
            u, gate = None, torch.ones_like(hidden)
            if self.w1 is not None:
                u = F.linear(hidden, self.w1.weight.to(hidden.dtype))
                u = u if nudge is None else u + nudge
                strength = self.strength.to(u.dtype)
                gate = (1 - strength) + strength * self.kappa * torch.sigmoid(u)
            features = hidden
            if self.coupling == "separate":
                features = gate * pooled_target(x, r, axis, keep, self.gate_target)
            logits = None
            if self.w2 is not None:
                operand = u if self.coupling == "shared" and u is not None else features
                logits = class_scores(operand, self.w2, self.intercept)
        factors = None if self.coupling == "head_only" else gate
        total = gated_sum(factors, x, r, axis, self.gate_target, self.branch_first)
        return total, BlockOutput(logits, x, r, pooled, features, gate, keep)


def class_scores(features: Tensor, w2: nn.Linear, intercept: Tensor | None) -> Tensor:
    """Class scores (B, n) of what a class matrix reads, (B, C), in the type of that."""
    logits = F.linear(features, w2.weight.to(features.dtype))
    return logits if intercept is None else logits + intercept.to(logits.dtype)


def pooled_target(x: Tensor, r: Tensor, axis: int, keep: Tensor | None, target: GateTarget) -> Tensor:
    """Mean (B, C) of what a gate multiplies. A gate does not vary over positions, so it may multiply the mean."""
    mean = pool(x, axis, keep)
    return mean + pool(r, axis, keep) if target == "sum" else mean


def pool(tensor: Tensor, axis: int, keep: Tensor | None = None) -> Tensor:
    """Mean over positions, (B, C), at least float32; over tokens with weights `keep` (B, T), and 0 where all are 0."""
    wide = wide_dtype(tensor)
    if keep is None:
        return tensor.mean([i for i in range(1, tensor.dim()) if i != axis], dtype=wide)
    weights = keep.to(wide)
    # Taken out rather than multiplied by 0: a host that masks whole rows of attention may have NaN at padding.
    real = tensor.to(wide).masked_fill((weights == 0)[:, :, None], 0.0)
    return torch.einsum("bt,btc->bc", weights, real) / weights.sum(1, keepdim=True).clamp_min(1)


def channel_axis(tensor: Tensor, channels: int, channels_last: bool) -> int:
    """Which axis of a map or of tokens holds C channels; where sizes do not tell (W = C), `channels_last` decides."""
    last = tensor.dim() - 1
    places = {3: (last,), 4: (last, 1) if channels_last else (1, last)}.get(tensor.dim(), ())
    for axis in places:
        if tensor.shape[axis] == channels:
            return axis
    raise CaptureError(
        f"Expected {channels} channels where the branches meet, in maps (B, C, H, W) or (B, H, W, C) or in tokens "
        f"(B, T, C), but the tensor has the shape {tuple(tensor.shape)}; leave this unit out with where=[...]."
    )


def pooled_sum(x: Tensor, r: Tensor, axis: int, keep: Tensor | None, relu: Relu) -> tuple[Tensor, Tensor]:
    """`p` and `h`, both (B, C), at least float32: the mean of `x + r` over positions, and what the matrices read."""
    if relu == "pre":
        pooled = pool(F.relu(x + r), axis, keep)
        return pooled, pooled
    pooled = pool(x, axis, keep) + pool(r, axis, keep)
    return pooled, F.relu(pooled)


def gated_sum(
    gate: Tensor | None, x: Tensor, r: Tensor, axis: int, target: GateTarget, branch_first: bool = False
) -> Tensor:
    """`g * x + r`, or `g * (x + r)` for the target `"sum"`; a gate is (B, C), (1, C) for all samples, or None for 1."""
    # The sum lies in memory as the host's own (`r + x` if `branch_first`): what follows may add up values in that
    # order.
    if gate is None:
        return r + x if branch_first else x + r
    spread = gate.to(x.dtype).reshape([gate.shape[0], *(gate.shape[1] if i == axis else 1 for i in range(1, x.dim()))])
    if target == "sum":
        return spread * (r + x if branch_first else x + r)
    if x.dtype == r.dtype and x.stride() == r.stride():
        return torch.addcmul(r, spread, x)  # one pass over memory
    return r + spread * x if branch_first else spread * x + r


def wide_dtype(tensor: Tensor) -> torch.dtype:
    """What sums over a tensor are kept in: its own type, or float32 if that is less."""
    return torch.promote_types(tensor.dtype, torch.float32)
