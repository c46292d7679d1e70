"""Taking off what predictions do not need, and what is known of the gates."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Literal, get_args

from torch import nn

from mhex.errors import ArgumentError, CaptureError, MhexWarning, unknown_name
from mhex.heads import call_record as calls
from mhex.heads.block import Block
from mhex.heads.heads import Heads, Source
from mhex.heads.predictors import shown_width

# "none": no matrix; "off": lambda is 0; "one": W1 is 0 and so the gate 1; "constant": W1 is 0; "active"; "unknown": on
# the meta device.
GateState = Literal["none", "off", "one", "constant", "active", "unknown"]


def gate_state(block: Block) -> GateState:
    """What a gate does: the first three leave the model as it is, exactly."""
    if block.w1 is None:
        return "none"
    if block.strength.is_meta:
        return "unknown"
    strength = float(block.strength)
    if strength == 0:
        return "off"
    if bool(block.w1.weight.any()):
        return "active"
    return "one" if (1 - strength) + strength * block.kappa * 0.5 == 1 else "constant"


def gates_are_one(heads: Heads) -> bool:
    """True if every gate is exactly 1 whatever the input, so that the model is the plain one."""
    return all(gate_state(block) in ("none", "off", "one") for block in heads.named_blocks().values())


def what_predicts(heads: Heads, given: Source | None = None) -> Source:
    """Where predictions come from.

    Args:
        heads: Of the model.
        given: The user's choice.

    Raises:
        CaptureError: Nothing was chosen, and no forward pass has shown what the model returns.
    """
    if given is not None and given not in get_args(Source):
        raise unknown_name("source of predictions", str(given), get_args(Source))
    if (source := given or heads.settled_source()) is not None:
        return source
    if (width := shown_width(heads)) is None:  # what is taken off is gone, so a guess will not do
        raise CaptureError(
            "It is not known yet what predicts: call the model once, or set scaffold.predict_from to 'classifier', "
            "'last_head' or 'sum'."
        )
    return "classifier" if width == heads.settings.num_classes else heads.head_source()


def last_of(heads: Heads) -> str:
    """Name of the block that runs last, as seen in calls.

    Raises:
        CaptureError: No call has shown it: a model may run its units in another order than it lists them.
    """
    if not heads.order and len(heads.places) > 1:
        raise CaptureError(
            "It is not known yet which head is the last: call the model once, because it may run its units in another "
            "order than it lists them."
        )
    return (heads.order or heads.names)[-1]


def strip(heads: Heads, source: Source) -> int:
    """Take off, in place, every matrix that predictions do not read; they stay the same to the last bit.

    Args:
        heads: Of the model.
        source: What predicts; it is settled for good.

    Returns:
        Number of parameters that went.
    """
    before = sum(p.numel() for p in heads.parameters())
    last = last_of(heads) if source == "last_head" else None
    if last is not None and heads[last].w2 is None:
        raise CaptureError("The last head was stripped before, so it cannot predict; attach the heads again.")
    if source == "sum":
        warnings.warn(
            "Nothing can be stripped: predictions come from the sum of all heads, which reads every matrix.",
            MhexWarning,
            stacklevel=3,
        )
        return 0
    for name, block in heads.named_blocks().items():
        if name != last:
            block.w2, block.intercept = None, None
        read = block.w2 is not None and block.coupling == "shared"
        if gate_state(block) == "off" and not read:
            block.w1 = None
    heads.source = source
    calls.forget(heads.token)
    return before - sum(p.numel() for p in heads.parameters())


def reset(heads: Heads, num_classes: int) -> None:
    """Give every block a new class matrix, drawn as at the start; the gates' matrices stay.

    Args:
        heads: Of the model.
        num_classes: Of the new task.
    """
    for name, block in heads.named_blocks().items():
        if block.w1 is None and block.coupling != "head_only":
            raise ArgumentError(
                f"The block at {name} was stripped of its first matrix, so it cannot learn classes; attach new heads."
            )
    for block in heads.named_blocks().values():
        kept = block.strength if block.w1 is None else block.w1.weight
        fresh = nn.Linear(block.channels, num_classes, bias=False)
        block.w2, block.intercept = fresh.to(kept.device, kept.dtype).train(block.training), None
    heads.settings = replace(heads.settings, num_classes=num_classes)
    heads.source, heads.mode, heads.decay, heads.joined = None, "finetune", 0.8, True
    calls.forget(heads.token)
