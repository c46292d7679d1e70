"""The one call: explain a model's decision on a batch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from mhex.bundle import Bundle
from mhex.capture import Outputs
from mhex.explainer import Explainer
from mhex.explanation import Explanation
from mhex.targets import Target, Task


def explain(
    model: nn.Module | Bundle,
    inputs: Any,
    method: str = "auto",
    target: Target = None,
    *,
    preprocess: Callable[[Any], Tensor] | None = None,
    window: tuple[float, float] | None = None,
    tokenizer: Callable[..., Mapping[str, Any]] | None = None,
    class_names: Sequence[str] | Mapping[int, str] | None = None,
    task: Task | None = None,
    outputs: Outputs | None = None,
    seed: int = 0,
    progress: bool = False,
    **options: Any,
) -> Explanation:
    """Explain why `model` gives `target` its score on each sample of a batch.

    The model is run in evaluation mode and left exactly as it was. Several targets share one forward pass.

    Args:
        model: A classifier, unmodified; wrappers of `torch.compile` and `DataParallel` are looked through, and a
            compiled model runs compiled where nothing is seen inside. Or a bundle from `mhex.load`, which brings its
            own preprocessing and class names.
        inputs: A batch: a normalised image tensor (B, C, H, W); PIL images with `preprocess`; a dictionary of
            tokenizer outputs, or of `pixel_values`; strings with `tokenizer`.
        method: A name from `mhex.list_methods()`; or `"auto"` for the one that our benchmarks speak for, given the kind
            of the model (docs/explain.md has the table). `Explanation.method` names it.
        target: None for the predicted class; a class number or name; a tensor (B,) with one class per sample; a list
            of classes or `"top5"` for several at once; a `mhex.Concept`, or a list of them; a function from logits
            (B, C) to scores (B,). Of a regression: outputs in place of classes, by default all of them.
        preprocess: From a PIL image to a tensor (C, H, W).
        window: Of photos, or of a tensor of whole numbers: the value that becomes black and the one that becomes
            white. It is needed where a photo of more than 8 bits does not say them itself; `preprocess` is then given
            upright photos in 8-bit RGB.
        tokenizer: A Hugging Face tokenizer.
        class_names: Names of the model's outputs; taken from the model's own configuration where it has one.
        task: `"classification"`, `"multi-label"` (each class has its own sigmoid) or `"regression"` (outputs are
            values: no probabilities, and a single output is explained as it is). By default what the model's
            configuration says; multi-label if the model ends in a sigmoid over several outputs; else classification.
        outputs: What the model returns: `"logits"`, or `"probabilities"`, whose logits are explained. By default it is
            recognised by the model's last operation, and by its outputs where that does not tell.
        seed: For methods that draw random numbers; the global generators are left alone.
        progress: Draw progress bars for long work.
        options: Options of the method; `mhex.list_methods()` lists them.

    Returns:
        The explanation: scores on the model's native grid, and everything needed to repeat or draw them.

    Example:
        >>> import torch, torchvision, mhex
        >>> model = torchvision.models.resnet18()
        >>> mhex.explain(model, torch.rand(2, 3, 64, 64), method="gradcam", target=[3, 7]).scores.shape
        torch.Size([2, 2, 2, 2])
    """
    explainer = Explainer(
        model,
        method,
        preprocess=preprocess,
        window=window,
        tokenizer=tokenizer,
        class_names=class_names,
        task=task,
        outputs=outputs,
        seed=seed,
        progress=progress,
        record=False,  # it is one call
        **options,
    )
    return explainer(inputs, target)
