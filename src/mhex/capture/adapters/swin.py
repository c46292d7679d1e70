"""Swin Transformers of torchvision and timm, for the CAM methods."""

from __future__ import annotations

from torch import nn

from mhex.capture.adapters.cnn import classifier, image_channels
from mhex.capture.anatomy import Anatomy, FeatureLayer, first_of, is_a


def swin_anatomy(model: nn.Module) -> Anatomy | None:
    """Anatomy of a Swin Transformer, or None. Its feature maps have channels last."""
    is_timm = is_a(model, "timm.models", "SwinTransformer", "SwinTransformerV2")
    if not is_timm and not is_a(model, "torchvision.models", "SwinTransformer"):
        return None
    stages = "layers" if is_timm else "features"
    *_, (number, last) = first_of(model, (stages,)).named_children()
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    return Anatomy(
        family=f"{'timm' if is_timm else 'torchvision'} Swin Transformer",
        modality="image",
        image_size=None if size is None else (int(size[0]), int(size[1])),
        channels=image_channels(model),
        features=FeatureLayer(last, "nhwc", f"{stages}.{number}"),
        head=classifier(model),
        no_attention="it attends within shifted windows, so its attention maps do not join into one over the image",
    )
