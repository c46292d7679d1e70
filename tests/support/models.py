"""Small random-weight models, one factory per family that the library promises to serve.

Every model is stock code of its library (or plain torch for the unknown ones), a few thousand parameters, and seeded.
Weights are larger than an initialisation would give, so that attention is far from uniform and gradients are not tiny:
a formula that is wrong must then show.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

CLASSES = 7
VOCABULARY = 60
LONGEST_TEXT = 20
LENGTHS = (8, 3, 11, 6, 9)  # of the five texts; 3 is one word between its two special tokens

Readout = Literal["class", "class+distilled", "class+mean", "mean", "pool", "measured"]


@dataclass(frozen=True)
class Family:
    """A model family and what is true of it by construction, written down independently of the library.

    Attributes:
        name: Used in test ids.
        build: Makes the model; weights are set afterwards.
        size: Image height and width; None for text.
        blocks: Number of Transformer blocks; 0 for models whose attention cannot be read.
        prefix: Tokens before the patches.
        grid: Patch grid of the attention methods.
        readout: How the head reads the tokens (the table of the methods' specification).
        features: Dotted name of the layer that CAM methods read; None if they do not serve the family.
        layout: How that layer lays out its output.
        feature_grid: Its height and width.
        other_size: Another image size that the family takes, and its patch grid; None if the size is fixed.
        explicit: Switches the model's own attention to a written-out softmax; None if it has no such switch.
        special_ids: Text: class, separator and padding id.
        heads: True if the model carries heads of `mhex.attach`.
        head_grid: Grid of the maps that they give; None for the size of the image.
    """

    name: str
    build: Callable[[], nn.Module]
    size: tuple[int, int] | None = None
    blocks: int = 0
    prefix: int = 0
    grid: tuple[int, int] | None = None
    readout: Readout = "class"
    features: str | None = None
    layout: Literal["nchw", "nhwc", "tokens"] = "nchw"
    feature_grid: tuple[int, int] | None = None
    other_size: tuple[tuple[int, int], tuple[int, int]] | None = None
    explicit: Callable[[nn.Module], None] | None = None
    special_ids: tuple[int, int, int] = (1, 2, 0)
    heads: bool = False
    head_grid: tuple[int, int] | None = None

    @property
    def modality(self) -> str:
        return "text" if self.size is None else "image"

    @property
    def tokens(self) -> int:
        """Tokens of the longest sample."""
        return max(LENGTHS) if self.grid is None else self.prefix + self.grid[0] * self.grid[1]

    def model(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        """A shared model, in evaluation mode; for tests that leave it as it is."""
        return _cached(self.name, dtype)

    def fresh(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        """A model of one's own, with the same weights as the shared one; for tests that change it."""
        return copy.deepcopy(_cached(self.name, dtype))

    def inputs(self, count: int = 5, dtype: torch.dtype = torch.float64, size: tuple[int, int] | None = None) -> Any:
        """A batch of `count` samples: images, or padded token ids with their mask."""
        generator = torch.Generator().manual_seed(7)
        if self.size is not None:
            return torch.randn(count, 3, *(size or self.size), generator=generator, dtype=torch.float64).to(dtype)
        cls, sep, pad = self.special_ids
        width = max(LENGTHS[:count])
        ids = torch.full((count, width), pad)
        mask = torch.zeros(count, width, dtype=torch.long)
        for row, length in enumerate(LENGTHS[:count]):
            ids[row, 0], ids[row, length - 1] = cls, sep
            ids[row, 1 : length - 1] = torch.randint(3, VOCABULARY, (length - 2,), generator=generator)
            mask[row, :length] = 1
        return {"input_ids": ids, "attention_mask": mask}

    def sample(self, inputs: Any, index: int) -> Any:
        """One sample as a batch of one; of text, without its padding."""
        if isinstance(inputs, Tensor):
            return inputs[index : index + 1]
        length = int(inputs["attention_mask"][index].sum())
        return {name: value[index : index + 1, :length] for name, value in inputs.items()}


def call(model: nn.Module, inputs: Any) -> Tensor:
    """Class scores (B, C) of a plain call."""
    output = model(inputs) if isinstance(inputs, Tensor) else model(**inputs)
    return output if isinstance(output, Tensor) else output.logits


class _CallCounter(TorchFunctionMode):
    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is F.scaled_dot_product_attention
        return func(*args, **(kwargs or {}))


def fused_calls(model: nn.Module, inputs: Any) -> int:
    """How often a plain call reaches torch's fused attention (calls inside `nn.MultiheadAttention` not counted)."""
    with torch.no_grad(), _CallCounter() as counter:
        call(model, inputs)
    return counter.count


@functools.cache
def _cached(name: str, dtype: torch.dtype) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = FAMILIES[name].build()
    return enliven(model).to(dtype).eval()


@torch.no_grad()
def enliven(model: nn.Module, seed: int = 1) -> nn.Module:
    """Random weights of a size that keeps activations near 1 and attention logits near 2."""
    generator = torch.Generator().manual_seed(seed)

    def noise(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator).to(like.dtype)

    for name, parameter in model.named_parameters():
        last = name.rsplit(".", 1)[-1]
        if parameter.dim() == 1 and last in ("weight", "gamma", "lambda1"):  # norms and LayerScale
            parameter.copy_(1 + 0.2 * noise(parameter))
        elif parameter.dim() <= 1:
            parameter.copy_(0.2 * noise(parameter))
        elif "embed" in name or "token" in name or last in ("latent", "probe"):
            parameter.copy_(noise(parameter) * (0.2 if parameter.dim() == 4 else 0.7))
        else:
            fan_in = parameter[0].numel() if last != "layer_scale" else 1
            parameter.copy_(1.6 * noise(parameter) / fan_in**0.5)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.copy_(0.2 * noise(buffer))
        elif name.endswith("running_var"):
            buffer.copy_(1 + 0.3 * noise(buffer).tanh())
    return model


# --- timm ------------------------------------------------------------------------------------------------------------

_VIT = {"patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 4, "num_classes": CLASSES}


def _timm_vit(**options: Any) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(**{**_VIT, "img_size": (32, 48), **options})


def _timm_distilled() -> nn.Module:
    from timm.models.deit import VisionTransformerDistilled

    return VisionTransformerDistilled(**_VIT, img_size=(32, 48))


def _timm_registers() -> nn.Module:
    import timm

    return timm.create_model(
        "vit_small_patch14_reg4_dinov2",
        pretrained=False,
        img_size=(42, 28),
        embed_dim=32,
        depth=2,
        num_heads=4,
        num_classes=CLASSES,
    )


def _timm_resnet() -> nn.Module:
    import timm

    return timm.create_model("resnet10t", pretrained=False, num_classes=CLASSES, channels=(8, 16, 24, 32), stem_width=8)


def _timm_convnext() -> nn.Module:
    from timm.models.convnext import ConvNeXt

    return ConvNeXt(depths=(1, 1, 1, 1), dims=(8, 16, 24, 32), num_classes=CLASSES)


def _timm_efficientnet() -> nn.Module:
    import timm

    return timm.create_model("test_efficientnet", pretrained=False, num_classes=CLASSES)


def _timm_swin() -> nn.Module:
    from timm.models.swin_transformer import SwinTransformer

    return SwinTransformer(
        img_size=(32, 48),
        patch_size=4,
        window_size=2,
        embed_dim=16,
        depths=(2, 2),
        num_heads=(2, 4),
        num_classes=CLASSES,
    )


def timm_written_out(model: nn.Module) -> None:
    """timm's own switch from the fused kernel to a softmax written out."""
    for module in model.modules():
        if "fused_attn" in module.__dict__:
            module.fused_attn = False


# --- Hugging Face ----------------------------------------------------------------------------------------------------

_HF = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "num_labels": CLASSES,
    "image_size": (32, 48),
    "patch_size": 8,
}
_HF_TEXT = {"vocab_size": VOCABULARY, "num_labels": CLASSES}
_BERT = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}


def _hf(name: str, config: str, **options: Any) -> nn.Module:
    import transformers

    return getattr(transformers, name)(getattr(transformers, config)(**options))


def hf_written_out(model: nn.Module) -> None:
    """Hugging Face's own switch to a softmax written out."""
    model.set_attn_implementation("eager")


def _hf_dinov2(registers: bool) -> nn.Module:
    options = {k: v for k, v in _HF.items() if k != "intermediate_size"}
    options = {**options, "image_size": 32, "num_hidden_layers": 2, "mlp_ratio": 2}
    if registers:
        return _hf(
            "Dinov2WithRegistersForImageClassification",
            "Dinov2WithRegistersConfig",
            **options,
            num_register_tokens=4,
        )
    return _hf("Dinov2ForImageClassification", "Dinov2Config", **options)


# --- torchvision -----------------------------------------------------------------------------------------------------


def _tv_vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(
        image_size=32, patch_size=8, num_layers=3, num_heads=4, hidden_dim=32, mlp_dim=48, num_classes=CLASSES
    )


def _tv_resnet() -> nn.Module:
    from torchvision.models.resnet import BasicBlock, ResNet

    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=CLASSES)


def _tv_convnext() -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    widths = (8, 16, 24, 32, None)
    return ConvNeXt([CNBlockConfig(widths[i], widths[i + 1], 1) for i in range(4)], num_classes=CLASSES)


def _tv_efficientnet() -> nn.Module:
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig

    settings = [
        MBConvConfig(1, 3, 1, 8, 8, 1, 1.0, 1.0),
        MBConvConfig(3, 3, 2, 8, 16, 2, 1.0, 1.0),
        MBConvConfig(3, 5, 2, 16, 24, 1, 1.0, 1.0),
    ]
    return EfficientNet(settings, dropout=0.2, num_classes=CLASSES, last_channel=32)


def _tv_swin() -> nn.Module:
    from torchvision.models.swin_transformer import SwinTransformer

    return SwinTransformer(
        patch_size=[4, 4],
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=[2, 2],
        num_classes=CLASSES,
    )


# --- unknown to the library ------------------------------------------------------------------------------------------


class PlainCNN(nn.Module):
    """In-place ReLU, and one ReLU module used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 12, 3, stride=2, padding=1)
        self.third = nn.Conv2d(12, 12, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)), inplace=True)
        x = self.relu(self.second(x))
        x = self.relu(self.third(x) + x)
        return self.head(self.drop(x.mean((2, 3))))


class PlainBlock(nn.Module):
    """A pre-norm Transformer block on fused attention."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm_a, self.norm_b = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm_a(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.feed(self.norm_b(x))


class PlainViT(nn.Module):
    """A ViT written by hand: class token and registers first, blocks in a ModuleList, perhaps one block used twice."""

    def __init__(self, blocks: int = 3, shared: bool = False, registers: int = 1, pooled: bool = False) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 8, stride=8)
        self.prefix_token = nn.Parameter(torch.zeros(1, registers, 32))
        self.position_embed = nn.Parameter(torch.zeros(1, 24 + registers, 32))
        block = PlainBlock()
        self.blocks = nn.ModuleList([block] * blocks if shared else [PlainBlock() for _ in range(blocks)])
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, CLASSES)
        self.pooled = pooled

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).mT
        x = torch.cat([self.prefix_token.expand(len(x), -1, -1), x], 1) + self.position_embed
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x.mean(1) if self.pooled else x[:, 0])


class EncoderViT(nn.Module):
    """A ViT around `nn.TransformerEncoder`, whose attention is `nn.MultiheadAttention` with a native fast path."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 8, stride=8)
        self.prefix_token = nn.Parameter(torch.zeros(1, 1, 32))
        self.position_embed = nn.Parameter(torch.zeros(1, 25, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).mT
        x = torch.cat([self.prefix_token.expand(len(x), -1, -1), x], 1) + self.position_embed
        return self.head(self.encoder(x)[:, 0])


class EncoderText(nn.Module):
    """A text classifier around `nn.TransformerEncoder`, pooling over real tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.word_embed = nn.Embedding(VOCABULARY, 32)
        self.position_embed = nn.Parameter(torch.zeros(1, LONGEST_TEXT, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.1, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(32, CLASSES)
        self.config = SimpleNamespace(bos_token_id=1, eos_token_id=2)

    def get_input_embeddings(self) -> nn.Module:
        return self.word_embed

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.word_embed(input_ids) + self.position_embed[:, : input_ids.shape[1]]
        x = self.encoder(x, src_key_padding_mask=~attention_mask.bool())
        real = attention_mask[:, :, None].to(x.dtype)
        return self.head((x * real).sum(1) / real.sum(1))


# --- the table -------------------------------------------------------------------------------------------------------

_WIDE = {"size": (32, 48), "grid": (4, 6), "feature_grid": (4, 6), "layout": "tokens"}
_TIMM = {**_WIDE, "explicit": timm_written_out, "blocks": 3, "features": "blocks.2.norm1"}
_HF_VIT = {**_WIDE, "explicit": hf_written_out, "blocks": 3}
_DINO = {**_WIDE, "explicit": hf_written_out, "blocks": 2, "other_size": ((40, 24), (5, 3)), "readout": "class+mean"}
_TEXT = {"explicit": hf_written_out, "blocks": 3, "prefix": 1}
_CNN = {"size": (64, 96), "feature_grid": (2, 3), "other_size": ((96, 64), (3, 2))}  # a stride of 32 in all

_TABLE = (
    Family("timm_vit", _timm_vit, prefix=1, **_TIMM),
    Family(
        "timm_vit_dynamic",
        functools.partial(_timm_vit, dynamic_img_size=True, qkv_bias=False, class_token=True),
        prefix=1,
        other_size=((40, 24), (5, 3)),
        **_TIMM,
    ),
    Family("timm_deit_distilled", _timm_distilled, prefix=2, readout="class+distilled", **_TIMM),
    Family(
        "timm_registers",
        _timm_registers,
        size=(42, 28),
        blocks=2,
        prefix=5,
        grid=(3, 2),
        features="blocks.1.norm1",
        layout="tokens",
        feature_grid=(3, 2),
        explicit=timm_written_out,
    ),
    Family("timm_avg_class_token", functools.partial(_timm_vit, global_pool="avg"), prefix=1, readout="mean", **_TIMM),
    Family("timm_avg", functools.partial(_timm_vit, global_pool="avg", class_token=False), readout="mean", **_TIMM),
    Family("timm_map", functools.partial(_timm_vit, global_pool="map", class_token=False), readout="pool", **_TIMM),
    Family(
        "hf_vit",
        functools.partial(_hf, "ViTForImageClassification", "ViTConfig", **_HF),
        prefix=1,
        features="vit.layers.2.layernorm_before",
        **_HF_VIT,
    ),
    Family(
        "hf_deit",
        functools.partial(_hf, "DeiTForImageClassification", "DeiTConfig", **_HF),
        prefix=2,
        features="deit.layers.2.layernorm_before",
        **_HF_VIT,
    ),
    Family(
        "hf_deit_teacher",
        functools.partial(_hf, "DeiTForImageClassificationWithTeacher", "DeiTConfig", **_HF),
        prefix=2,
        readout="class+distilled",
        features="deit.layers.2.layernorm_before",
        **_HF_VIT,
    ),
    Family(
        "hf_dinov2",
        functools.partial(_hf_dinov2, False),
        prefix=1,
        features="dinov2.encoder.layer.1.norm1",
        **_DINO,
    ),
    Family(
        "hf_dinov2_registers",
        functools.partial(_hf_dinov2, True),
        prefix=5,
        features="dinov2_with_registers.encoder.layer.1.norm1",
        **_DINO,
    ),
    Family(
        "hf_bert",
        functools.partial(
            _hf,
            "BertForSequenceClassification",
            "BertConfig",
            **_HF_TEXT,
            **_BERT,
            max_position_embeddings=LONGEST_TEXT,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
        **_TEXT,
    ),
    Family(
        "hf_roberta",
        functools.partial(
            _hf,
            "RobertaForSequenceClassification",
            "RobertaConfig",
            **_HF_TEXT,
            **_BERT,
            # Positions are numbered from pad_token_id + 1 on.
            max_position_embeddings=LONGEST_TEXT + 2,
            pad_token_id=1,
            bos_token_id=0,
            eos_token_id=2,
        ),
        special_ids=(0, 2, 1),
        **_TEXT,
    ),
    Family(
        "hf_distilbert",
        functools.partial(
            _hf,
            "DistilBertForSequenceClassification",
            "DistilBertConfig",
            **_HF_TEXT,
            dim=32,
            n_layers=3,
            n_heads=4,
            hidden_dim=48,
            max_position_embeddings=LONGEST_TEXT,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
        **_TEXT,
    ),
    Family(
        "tv_vit",
        _tv_vit,
        size=(32, 32),
        blocks=3,
        prefix=1,
        grid=(4, 4),
        features="encoder.layers.encoder_layer_2.ln_1",
        layout="tokens",
        feature_grid=(4, 4),
    ),
    Family(
        "tv_resnet",
        _tv_resnet,
        features="layer4.0",
        **_CNN,
    ),
    Family("timm_resnet", _timm_resnet, features="layer4.0", **_CNN),
    Family("tv_convnext", _tv_convnext, features="features.7", **_CNN),
    Family("timm_convnext", _timm_convnext, features="stages.3", **_CNN),
    Family(
        "tv_efficientnet",
        _tv_efficientnet,
        size=(32, 48),
        features="features.4",
        feature_grid=(4, 6),
        other_size=((48, 32), (6, 4)),
    ),
    Family(
        "timm_efficientnet",
        _timm_efficientnet,
        features="bn2",
        **_CNN,
    ),
    Family(
        "timm_swin",
        _timm_swin,
        size=(32, 48),
        features="layers.1",
        layout="nhwc",
        feature_grid=(4, 6),
    ),
    Family(
        "tv_swin",
        _tv_swin,
        size=(32, 48),
        features="features.3",
        layout="nhwc",
        feature_grid=(4, 6),
        other_size=((48, 32), (6, 4)),
    ),
    Family(
        "plain_cnn",
        PlainCNN,
        size=(32, 48),
        features="relu",
        feature_grid=(8, 12),
        other_size=((48, 32), (12, 8)),
    ),
    Family(
        "plain_vit",
        PlainViT,
        size=(32, 48),
        blocks=3,
        prefix=1,
        grid=(4, 6),
        readout="measured",
    ),
    Family(
        "plain_vit_shared",
        functools.partial(PlainViT, shared=True, registers=3, pooled=True),
        size=(32, 48),
        blocks=3,
        prefix=3,
        grid=(4, 6),
        readout="measured",
    ),
    Family(
        "encoder_vit",
        EncoderViT,
        size=(32, 48),
        blocks=2,
        prefix=1,
        grid=(4, 6),
        readout="measured",
    ),
    Family("encoder_text", EncoderText, blocks=2, prefix=1, readout="measured"),
)


def with_heads(model: nn.Module, classes: int = CLASSES, **options: Any) -> nn.Module:
    """The model with heads on all its residual connections; their weights are set by `enliven`."""
    import mhex

    with warnings.catch_warnings(action="ignore", category=mhex.errors.MhexWarning):  # tiny hosts, large heads
        mhex.attach(model, classes, **options)
    return model


def _headed(name: str, head_grid: tuple[int, int] | None = None) -> Family:
    plain = next(family for family in _TABLE if family.name == name)
    build = plain.build
    return replace(
        plain, name=f"{name}_heads", build=lambda: with_heads(build()), heads=True, head_grid=head_grid or plain.grid
    )


_HEADED = (
    _headed("tv_resnet"),
    _headed("timm_convnext"),
    _headed("timm_vit"),
    _headed("tv_vit"),
    _headed("hf_bert"),
    _headed("hf_distilbert"),
    _headed("plain_cnn", (8, 12)),
)

FAMILIES: dict[str, Family] = {family.name: family for family in (*_TABLE, *_HEADED)}
