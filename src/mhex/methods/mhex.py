"""Multi-Head Explainer (MHEX): class maps from heads on the residual connections, without any gradient.

The model carries heads (`mhex.attach(model, num_classes)`) that were trained with it or fitted to it.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal

from torch import Tensor

from mhex.capture import Needs, Trace
from mhex.registry import register


@register(
    "mhex",
    title="Class weights of trained heads times what flows through the residual connections.",
    paper="Sun & Liò, Multi-Head Explainer, 2025",
    needs=Needs(keep={"heads": "all"}),
    signed=True,
    passes="F",
    budget=(1.15, "F"),
    target="class",
    use="Models with heads of `mhex.attach`: maps of all classes from one forward pass, without a gradient.",
    avoid="Without trained or fitted heads: there is nothing to read.",
)
def mhex(
    trace: Trace,
    index: Tensor,
    *,
    preset: Literal["auto", "paper", "table3", "figure8", "probe", "text"] | str = "auto",
    alpha: float | None = None,
    sharpness: float | str | None = None,
    negative_sharpness: float | str | None = None,
    activation: str | None = None,
    layer_factor: float | None = None,
    anchor: Literal["deep", "shallow"] | str = "deep",
    layer_scale: Literal["none", "max"] | str = "none",
    active_only: bool = False,
    blocks: str | Sequence[str] | None = None,
    per_layer: bool = False,
) -> Tensor:
    """`M_c = sum_l rho^(L-l) Up(sum_k w(l)_(c,k) a(l)_k)`, with
    `w = W+ [SS+ > ss+] - alpha W- [SS- > ss-]` of `W = W2 W1`, and `SS` the share of a class in a channel's weights.

    Args:
        preset: Named settings; options that are given override them. `"auto"` is `"paper"` (alpha 0.5, sharpness 1/n +
            0.1, layer factor 0.9, gated sum) for images, `"probe"` (the same with layer factor 0.7 and `"relu_sum"`)
            where heads only look on at feature maps, as fitted ones do, and `"text"` (alpha 1, sharpness 0, layer
            factor 1, sum) for text, with `"relu_sum"` in place of any sum where heads have `relu="pre"`. Of published
            material: `"table3"` has alpha 1 and negative sharpness 0.1, `"figure8"` layer factor 0.8.
        alpha: Weight of negative class weights, from 0 to 1.
        sharpness: `ss+`: a class keeps a channel if its share of the positive weights is larger; 0 keeps all, `"auto"`
            is 1/n + 0.1.
        negative_sharpness: `ss-`, the same for negative weights; the positive one if not given.
        activation: What the weights multiply: `"gated"` (`g x`), `"gated_sum"` (`g x + r`), `"sum"` (`x + r`, what
            the head pools), `"output"` (what the unit returns) or `"relu_sum"` (`ReLU(x + r)`, what heads with
            `relu="pre"` pool).
        layer_factor: `rho`, over 0 and up to 1.
        anchor: Which end counts fully: the `"deep"` or the `"shallow"` one.
        layer_scale: `"max"` divides each block's map by its largest absolute value before the sum.
        active_only: Leave out channels whose mean is not positive, which the head does not see: then the mean of a
            block's `"sum"` map at alpha 1 and sharpness 0 is the score of its head. (Heads with `coupling="separate"`
            see all channels; the mean of their `"gated"` map is the score.)
        blocks: `"all"`, `"first3"`, `"last3"` (any number), or names; by default all for images and the first three
            for text.
        per_layer: Also give the map of each block on its own grid, as `Explanation.layers`.
    """
    # Heads load more than menus and command-line help should wait for.
    from mhex.heads import saliency
    from mhex.heads.call_record import HeadReading
    from mhex.heads.saliency import automatic, choose_blocks, settle, thresholds

    reading = trace.heads
    assert isinstance(reading, HeadReading)
    text = trace.batch.modality == "text"
    choice: str = preset
    if preset == "auto":
        choice, pooled = automatic(text, reading)
        activation = activation or pooled
    settings = settle(
        choice,
        alpha=alpha,
        sharpness=sharpness,
        negative_sharpness=negative_sharpness,
        activation=activation,
        layer_factor=layer_factor,
        anchor=anchor,
        layer_scale=layer_scale,
        active_only=active_only,
    )
    names = choose_blocks(("first3" if text else "all") if blocks is None else blocks, reading.names)
    maps = saliency.block_maps(reading, names, index, settings, trace.check_later)
    maps = {name: trace.on_grid(block) for name, block in maps.items()}
    positive, negative = thresholds(settings, reading.heads.settings.num_classes)
    trace.chosen = {**asdict(settings), "sharpness": positive, "negative_sharpness": negative}
    trace.chosen.update(preset=choice, blocks=names)
    if per_layer:
        trace.layers = dict(maps)
    return saliency.combined(maps, settings, None if text else trace.batch.pixels.shape[-2:])
