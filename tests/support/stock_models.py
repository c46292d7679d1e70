"""Stock models: the code of three libraries, small and with random weights, one for each family.

Where a library's own function takes sizes, they are small; otherwise the smallest model of the family is taken, or its
class is called with small sizes. Names say the library and what users call the model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from support.models import CLASSES, LENGTHS, VOCABULARY, enliven

_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
_NARROW = {"channels": (8, 16, 24, 32)}

# What weights are multiplied by in networks so deep that their scores would have six digits.
_GAIN = {"timm:levit": 0.5, "timm:starnet": 0.6, "timm:nfnet": 0.7, "timm:dla": 0.7, "timm:mobilenetv3": 0.7}
_GAIN |= {
    "torchvision:regnet_x": 0.8,
    "torchvision:regnet_y": 0.8,
    "torchvision:mnasnet": 0.7,
    "torchvision:shufflenet": 0.7,
}


@dataclass(frozen=True)
class StockModel:
    """A model of a library, small and with random weights.

    Attributes:
        name: `library:model`.
        build: Makes it; weights are set afterwards.
        size: Side of its images; None for texts.
    """

    name: str
    build: Callable[[], nn.Module]
    size: int | None = 32

    def model(self) -> nn.Module:
        """In evaluation mode, in float32."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = enliven(self.build())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(_GAIN.get(self.name, 1.0) if parameter.dim() > 1 else 1.0)
        return model.eval()

    def inputs(self, count: int) -> Any:
        """The first samples of the same batch: images, or padded token ids with their mask."""
        generator = torch.Generator().manual_seed(7)
        if self.size is not None:
            return torch.randn(3, 3, self.size, self.size, generator=generator)[:count]
        lengths = LENGTHS[:3]
        ids = torch.randint(4, VOCABULARY, (3, max(lengths)), generator=generator)
        mask = torch.zeros_like(ids)
        for row, length in enumerate(lengths):
            mask[row, :length] = 1
            ids[row, 0], ids[row, length - 1], ids[row, length:] = 1, 2, 0
        return {"input_ids": ids[:count], "attention_mask": mask[:count]}  # padded alike, whatever the count


def _timm(name: str, **options: Any) -> nn.Module:
    import timm

    return timm.create_model(name, pretrained=False, num_classes=CLASSES, **options)


def _timm_class(module: str, name: str, **options: Any) -> nn.Module:
    import importlib

    return getattr(importlib.import_module(f"timm.models.{module}"), name)(num_classes=CLASSES, **options)


def _mixer(block: str, **options: Any) -> nn.Module:
    from timm.models import mlp_mixer

    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_blocks": 2}
    return mlp_mixer.MlpMixer(num_classes=CLASSES, block_layer=getattr(mlp_mixer, block), **sizes, **options)


def _gmlp() -> nn.Module:
    from timm.layers import GatedMlp

    return _mixer("SpatialGatingBlock", mlp_ratio=2, mlp_layer=GatedMlp)


def _caformer() -> nn.Module:
    from timm.models import metaformer as parts

    mixers = [parts.SepConv, parts.SepConv, parts.Attention, parts.Attention]
    norms = [parts.LayerNorm2dNoBias] * 2 + [parts.LayerNormNoBias] * 2
    sizes = {"depths": (1, 1, 1, 1), "dims": (32, 32, 32, 32)}
    return parts.MetaFormer(**sizes, token_mixers=mixers, norm_layers=norms, num_classes=CLASSES)


def _tv(name: str, **options: Any) -> nn.Module:
    import torchvision

    return torchvision.models.get_model(name, weights=None, num_classes=CLASSES, **options)


def _tv_class(module: str, name: str, **options: Any) -> nn.Module:
    import importlib

    kind = getattr(importlib.import_module(f"torchvision.models.{module}"), name)
    return kind(num_classes=CLASSES, **options)


def _tv_other_head(name: str, width: int) -> nn.Module:
    """With a single linear layer in the place of a classifier of a hundred million weights, as users put there."""
    import torchvision

    with torch.device("meta"):
        model = torchvision.models.get_model(name, weights=None)
    model.avgpool, model.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(width, CLASSES)
    for part in (model.features,):
        part.to_empty(device="cpu")
    return model


def _tv_resnet(block: str, **options: Any) -> nn.Module:
    from torchvision.models import resnet

    return resnet.ResNet(getattr(resnet, block), [1, 1, 1, 1], num_classes=CLASSES, **options)


def _tv_convnext() -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    widths = (8, 16, 24, 32, None)
    return ConvNeXt([CNBlockConfig(widths[i], widths[i + 1], 1) for i in range(4)], num_classes=CLASSES)


def _tv_efficientnet(first: str) -> nn.Module:
    from torchvision.models import efficientnet

    settings = [
        getattr(efficientnet, first)(1, 3, 1, 8, 8, 1),
        getattr(efficientnet, first)(2, 3, 2, 8, 16, 1),
        efficientnet.MBConvConfig(3, 5, 2, 16, 24, 2),
    ]
    return efficientnet.EfficientNet(settings, dropout=0.2, num_classes=CLASSES, last_channel=32)


def _tv_swin(block: str) -> nn.Module:
    from torchvision.models import swin_transformer as swin

    merging = swin.PatchMergingV2 if block.endswith("V2") else swin.PatchMerging
    sizes = {"patch_size": [4, 4], "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": [2, 2]}
    options = {"block": getattr(swin, block), "downsample_layer": merging}
    return swin.SwinTransformer(num_classes=CLASSES, **sizes, **options)


def _tv_googlenet() -> nn.Module:
    import torchvision

    return torchvision.models.GoogLeNet(num_classes=CLASSES, aux_logits=False, init_weights=False)


def _tv_inception() -> nn.Module:
    import torchvision

    return torchvision.models.Inception3(num_classes=CLASSES, aux_logits=False, init_weights=False)


def _hf(name: str, config: str, **options: Any) -> nn.Module:
    import transformers

    return getattr(transformers, name)(getattr(transformers, config)(num_labels=CLASSES, **options))


_HF = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_HF_TEXT = {**_HF, "vocab_size": VOCABULARY, "max_position_embeddings": 40, "pad_token_id": 0}
_HF_DECODER = {**_HF_TEXT, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
_HF_IMAGE = {**_HF, "image_size": 32, "patch_size": 8}
_STAGES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
_T5 = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
_BART = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


class LSTM(nn.Module):
    """A text classifier of one's own that reads the last state of each text."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 16)
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states, _ = self.lstm(self.words(input_ids))
        return self.head(states[torch.arange(len(states)), attention_mask.sum(1) - 1])


def _text(name: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    return functools.partial(_hf, f"{name}ForSequenceClassification", f"{config}Config", **options)


def _image(name: str, **options: Any) -> Callable[[], nn.Module]:
    return functools.partial(_hf, f"{name}ForImageClassification", f"{name}Config", **options)


_TIMM: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "vit": (functools.partial(_timm, "vit_tiny_patch16_224", **_VIT), 32),
    "deit distilled": (functools.partial(_timm, "deit_tiny_distilled_patch16_224", **_VIT), 32),
    "deit3": (functools.partial(_timm, "deit3_small_patch16_224", **_VIT), 32),
    "dinov2 with registers": (functools.partial(_timm, "vit_small_patch14_reg4_dinov2", **_VIT), 32),
    "dinov3": (functools.partial(_timm, "vit_small_patch16_dinov3", **_VIT), 32),
    "siglip": (functools.partial(_timm, "vit_base_patch16_siglip_224", **_VIT), 32),
    "vit_relpos": (functools.partial(_timm, "vit_relpos_small_patch16_224", **_VIT), 32),
    "naflexvit": (functools.partial(_timm, "naflexvit_base_patch16_gap", **{**_VIT, "img_size": None}), 32),
    "samvit": (functools.partial(_timm, "samvit_base_patch16_224", **_VIT), 32),
    "beit": (functools.partial(_timm, "beit_base_patch16_224", **_VIT), 32),
    "eva02": (functools.partial(_timm, "eva02_tiny_patch14_224", **_VIT), 32),
    "cait": (functools.partial(_timm, "cait_xxs24_224", **_VIT), 32),
    "convit": (functools.partial(_timm, "convit_tiny", **_VIT, local_up_to_layer=1), 32),
    "xcit": (functools.partial(_timm, "xcit_nano_12_p8_224", img_size=32, embed_dim=32, depth=2, num_heads=4), 32),
    "pit": (
        functools.partial(
            _timm, "pit_ti_224", img_size=32, patch_size=8, stride=4, base_dims=(8, 8, 8), depth=(1, 1, 1),
            heads=(1, 2, 4),
        ),
        32,
    ),
    "swin": (
        functools.partial(
            _timm, "swin_tiny_patch4_window7_224", img_size=32, window_size=2, embed_dim=16, depths=(2, 2),
            num_heads=(2, 4),
        ),
        32,
    ),
    "swinv2": (
        functools.partial(
            _timm, "swinv2_tiny_window8_256", img_size=32, window_size=2, embed_dim=16, depths=(2, 2), num_heads=(2, 4)
        ),
        32,
    ),
    "davit": (
        functools.partial(
            _timm, "davit_tiny", depths=(1, 1, 1, 1), embed_dims=(16, 16, 32, 32), num_heads=(1, 1, 2, 2)
        ),
        32,
    ),
    "twins": (
        functools.partial(_timm, "twins_svt_small", img_size=64, depths=(1, 1, 1, 1), embed_dims=(16, 16, 32, 32)),
        64,
    ),
    "levit": (functools.partial(_timm, "levit_128s", img_size=64), 64),
    "caformer": (_caformer, 32),
    "edgenext": (functools.partial(_timm, "edgenext_xx_small", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32)), 32),
    "mixer": (functools.partial(_mixer, "MixerBlock"), 32),
    "resmlp": (functools.partial(_mixer, "ResBlock", mlp_ratio=2), 32),
    "gmlp": (_gmlp, 32),
    "convmixer": (functools.partial(_timm_class, "convmixer", "ConvMixer", dim=16, depth=2, patch_size=4), 32),
    "resnet": (functools.partial(_timm, "resnet10t", **_NARROW, stem_width=8), 64),
    "seresnet": (functools.partial(_timm, "seresnet18", **_NARROW), 64),
    "resnetv2": (functools.partial(_timm, "resnetv2_18", **_NARROW), 32),
    "densenet": (
        functools.partial(_timm_class, "densenet", "DenseNet", growth_rate=8, block_config=(1, 1, 1, 1)),
        32,
    ),
    "convnext": (functools.partial(_timm, "convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 24, 64)), 64),
    "convnextv2": (functools.partial(_timm, "convnextv2_atto", depths=(1, 1, 1, 1), dims=(8, 16, 24, 64)), 64),
    "efficientnet": (functools.partial(_timm, "test_efficientnet"), 64),
    "mobilenetv3": (functools.partial(_timm, "mobilenetv3_small_050"), 32),
    "regnet": (functools.partial(_timm, "regnety_002"), 32),
    "byobnet": (functools.partial(_timm, "test_byobnet"), 32),
    "nfnet": (functools.partial(_timm, "test_nfnet"), 32),
    "mambaout": (functools.partial(_timm, "test_mambaout"), 32),
    "starnet": (functools.partial(_timm, "starnet_s050"), 32),
    "dla": (functools.partial(_timm, "dla46_c"), 64),
}  # fmt: skip

# Every classifier of torchvision begins like one of these.
TORCHVISION: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "alexnet": (functools.partial(_tv_other_head, "alexnet", 256), 64),
    "convnext": (_tv_convnext, 64),
    "densenet": (
        functools.partial(
            _tv_class, "densenet", "DenseNet", growth_rate=8, block_config=(1, 1, 1, 1), num_init_features=16
        ),
        32,
    ),
    "efficientnet_b": (functools.partial(_tv_efficientnet, "MBConvConfig"), 32),
    "efficientnet_v2": (functools.partial(_tv_efficientnet, "FusedMBConvConfig"), 32),
    "googlenet": (_tv_googlenet, 32),
    "inception_v3": (_tv_inception, 75),
    "maxvit": (
        functools.partial(
            _tv_class, "maxvit", "MaxVit", input_size=(32, 32), stem_channels=8, partition_size=2,
            block_channels=[8, 16], block_layers=[1, 1], head_dim=4, stochastic_depth_prob=0.0,
        ),
        32,
    ),
    "mnasnet": (functools.partial(_tv, "mnasnet0_5"), 32),
    "mobilenet_v2": (functools.partial(_tv, "mobilenet_v2", width_mult=0.25), 32),
    "mobilenet_v3": (functools.partial(_tv, "mobilenet_v3_small"), 32),
    "regnet_x": (functools.partial(_tv, "regnet_x_400mf"), 32),
    "regnet_y": (functools.partial(_tv, "regnet_y_400mf"), 32),
    "resnet": (functools.partial(_tv_resnet, "Bottleneck", width_per_group=8), 64),
    "resnext": (functools.partial(_tv_resnet, "Bottleneck", groups=4, width_per_group=4), 64),
    "shufflenet": (functools.partial(_tv, "shufflenet_v2_x0_5"), 32),
    "squeezenet": (functools.partial(_tv, "squeezenet1_1"), 32),
    "swin": (functools.partial(_tv_swin, "SwinTransformerBlock"), 32),
    "swin_v2": (functools.partial(_tv_swin, "SwinTransformerBlockV2"), 32),
    "vgg": (functools.partial(_tv_other_head, "vgg11", 512), 32),
    "vgg_bn": (functools.partial(_tv_other_head, "vgg11_bn", 512), 32),
    "vit": (
        functools.partial(
            _tv_class, "vision_transformer", "VisionTransformer", image_size=32, patch_size=8, num_layers=2,
            num_heads=4, hidden_dim=32, mlp_dim=48,
        ),
        32,
    ),
    "wide_resnet": (functools.partial(_tv_resnet, "Bottleneck", width_per_group=16), 64),
}  # fmt: skip

_TEXT: dict[str, Callable[[], nn.Module]] = {
    "bert": _text("Bert", "Bert", **_HF_TEXT),
    "roberta": _text("Roberta", "Roberta", **_HF_TEXT, bos_token_id=1, eos_token_id=2),
    "distilbert": _text(
        "DistilBert", "DistilBert", vocab_size=VOCABULARY, dim=32, n_layers=2, n_heads=4, hidden_dim=48
    ),
    "electra": _text("Electra", "Electra", **_HF_TEXT, embedding_size=32),
    "albert": _text("Albert", "Albert", **_HF_TEXT, embedding_size=16),
    "deberta-v2": _text("DebertaV2", "DebertaV2", **_HF_TEXT, relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "mpnet": _text("MPNet", "MPNet", **_HF_TEXT),
    "xlnet": _text("XLNet", "XLNet", vocab_size=VOCABULARY, d_model=32, n_layer=2, n_head=4, d_inner=48, **_ENDS),
    "fnet": _text("FNet", "FNet", **{k: v for k, v in _HF_TEXT.items() if k != "num_attention_heads"}),
    "modernbert": _text("ModernBert", "ModernBert", **{**_HF_TEXT, **_ENDS}, cls_token_id=1, sep_token_id=2),
    "gpt2": _text("GPT2", "GPT2", vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, **_ENDS),
    "llama": _text("Llama", "Llama", **_HF_DECODER),
    "qwen2": _text("Qwen2", "Qwen2", **_HF_DECODER),
    "gemma": _text("Gemma", "Gemma", **_HF_DECODER, head_dim=8),
    "t5": _text("T5", "T5", **_T5, pad_token_id=0, eos_token_id=2, decoder_start_token_id=0),
    "bart": _text(
        "Bart", "Bart", vocab_size=VOCABULARY, d_model=32, **_BART, encoder_ffn_dim=48, decoder_ffn_dim=48,
        max_position_embeddings=40, **_ENDS,
    ),
}  # fmt: skip

_IMAGE: dict[str, Callable[[], nn.Module]] = {
    "vit": _image("ViT", **_HF_IMAGE),
    "beit": _image("Beit", **_HF_IMAGE),
    "dinov2": _image("Dinov2", **{k: v for k, v in _HF_IMAGE.items() if k != "intermediate_size"}, mlp_ratio=2),
    "clip": _image("CLIP", vision_config=_HF_IMAGE),
    "siglip": _image("Siglip", vision_config=_HF_IMAGE),
    "swin": _image("Swin", image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=2),
    "segformer": _image(
        "Segformer", hidden_sizes=[8, 8, 16, 16], num_attention_heads=[1, 1, 2, 2], depths=[1, 1, 1, 1]
    ),
    "convnextv2": _image("ConvNextV2", **_STAGES),
    "resnet": _image("ResNet", embedding_size=8, **_STAGES),
    "mobilevit": _image(
        "MobileViT", image_size=32, hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32]
    ),
}  # fmt: skip

STOCK_MODELS: dict[str, StockModel] = {
    stock.name: stock
    for stock in (
        *(StockModel(f"timm:{name}", build, size) for name, (build, size) in _TIMM.items()),
        *(StockModel(f"torchvision:{name}", build, size) for name, (build, size) in TORCHVISION.items()),
        *(StockModel(f"transformers:{name}", build, None) for name, build in _TEXT.items()),
        *(
            StockModel(f"transformers:{name} (images)", build, 64 if name == "segformer" else 32)
            for name, build in _IMAGE.items()
        ),
        StockModel("torch:lstm", LSTM, None),
    )
}
