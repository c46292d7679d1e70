"""The sections of a recipe about explainer heads: what they are, and how they are fitted where nothing is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mhex._schema import setting


@dataclass(frozen=True)
class HeadsPart:
    """Multi-Head Explainer heads: the arguments of `mhex.attach` and of the loss; None leaves an argument out.

    Attributes:
        where: Units that get a head: a placement such as `all`, or a list of unit names.
        preset: Form and start of the gates.
        coupling: Variant of the coupling.
        gate_target: What the gate multiplies.
        relu: Where the ReLU sits.
        exclude_special: Whether special tokens stay out of the pooling.
        mode: `pretrain` for one loss of the summed logits, `finetune` for the sum of the heads' losses.
        decay: Decay of the running sum of logits.
        classifier: Whether the host's classifier is part of the loss, and then gives the answers.
        reduction: `sum` or `mean` of the heads' losses.
    """

    where: str | tuple[str, ...] = "all"
    preset: Literal["paper", "identity", "warmup", "probe"] = "identity"
    coupling: str | None = None
    gate_target: str | None = None
    relu: str | None = None
    exclude_special: bool | None = None
    mode: Literal["pretrain", "finetune"] = "finetune"
    decay: float = setting(0.8, low=0, high=1)
    classifier: bool = True
    reduction: Literal["sum", "mean"] = "sum"


@dataclass(frozen=True)
class FitPart:
    """Heads without training: arguments of `Scaffold.fit`.

    Attributes:
        method: `ridge` (closed form) or `logistic`.
        balance: Whether every class counts the same, however rare.
        strength: Of the penalty; null to choose it on held-out samples.
    """

    method: Literal["ridge", "logistic"] = "ridge"
    balance: bool = True
    strength: float | None = setting(None, above=0)
