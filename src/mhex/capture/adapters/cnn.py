"""Swin Transformers of torchvision and timm, for the CAM methods."""

from __future__ import annotations

from torch import nn

from mhex.capture.anatomy import Anatomy, FeatureLayer, first_of, is_a

# package, class, name shown, where the last feature maps are (of a sequence, its last item)
_FAMILIES = (
    ("torchvision.models", "ResNet", "torchvision ResNet", "layer4"),
    ("timm.models", "ResNet", "timm ResNet", "layer4"),
    ("torchvision.models", "ConvNeXt", "torchvision ConvNeXt", "features"),
    ("timm.models", "ConvNeXt", "timm ConvNeXt", "stages"),
    ("torchvision.models", "EfficientNet", "torchvision EfficientNet", "features"),
    ("timm.models", "EfficientNet", "timm EfficientNet", "bn2"),
)


def cnn_anatomy(model: nn.Module) -> Anatomy | None:
    """Anatomy of a known convolutional classifier, or None."""
    for package, name, family, stage in _FAMILIES:
        if is_a(model, package, name):
            layer, place = first_of(model, (stage,)), stage
            if isinstance(layer, nn.Sequential):
                *_, (number, layer) = layer.named_children()
                place = f"{stage}.{number}"
            return Anatomy(
                family=family,
                modality="image",
                channels=image_channels(model),
                features=FeatureLayer(layer, "nchw", place),
                head=classifier(model),
                no_attention="it is a convolutional network without attention",
            )
    return None


def classifier(model: nn.Module) -> nn.Module | None:
    """The linear layer that gives the class scores; an identity where it was left out; None if there is neither."""
    for name in ("fc", "classifier", "head"):
        if isinstance(part := getattr(model, name, None), nn.Module):
            linear = [m for m in part.modules() if isinstance(m, nn.Linear)]
            empty = getattr(part, "fc", part)
            return linear[-1] if linear else empty if isinstance(empty, nn.Identity) else None
    return None


def image_channels(model: nn.Module) -> int | None:
    """Input channels of the first convolution, which is where images enter the models of this room."""
    return next((m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d)), None)


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
