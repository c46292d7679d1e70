"""What the heads add to a model: counts of the published tables, exactly."""

import json

import pytest
import torch
import torchvision
import transformers

import mhex
from support.hosts_with_heads import with_heads

pytestmark = pytest.mark.filterwarnings("ignore::mhex.errors.MhexWarning")
RESNETS = [
    ("resnet18", "all", 8, 1_920, 696_320, 2_616_320, 713_600),
    ("resnet34", "all", 16, 3_776, 1_257_472, 5_033_472, 1_291_456),
    ("resnet18", "downsample", 3, 896, 344_064, 1_240_064, 352_128),
    ("resnet18", "projection", 3, 896, 344_064, 1_240_064, 352_128),
    ("resnet34", "downsample", 3, 896, 344_064, 1_240_064, 352_128),
    ("resnet34", "projection", 3, 896, 344_064, 1_240_064, 352_128),
    ("resnet50", "all", 16, 15_104, 20_119_552, 35_223_552, 20_255_488),
    ("resnet50", "downsample", 3, 3_584, 5_505_024, 9_089_024, 5_537_280),
    ("resnet50", "projection", 4, 3_840, 5_570_560, 9_410_560, 5_605_120),
]


def resnet(name):
    with torch.device("meta"):
        return getattr(torchvision.models, name)()


def check(summary, blocks, width, square, total):
    assert len(summary.rows) == blocks
    assert sum(row.channels for row in summary.rows) == width
    assert summary.w1 == square
    assert summary.w1 == sum(row.channels**2 for row in summary.rows)
    assert summary.parameters == total


@pytest.mark.parametrize(("name", "where", "blocks", "width", "square", "thousand", "nine"), RESNETS)
@pytest.mark.slow
def test_counts_of_resnets(name, where, blocks, width, square, thousand, nine):
    for classes, total in ((1000, thousand), (9, nine)):
        model = resnet(name)
        own = sum(p.numel() for p in model.parameters())
        summary = mhex.attach(model, classes, where).summary()
        check(summary, blocks, width, square, total)
        assert summary.w2 == classes * width
        assert summary.host_parameters == own
        assert sum(p.numel() for p in model.parameters()) == own + total


@pytest.mark.parametrize(
    ("where", "blocks", "width", "square", "total"),
    [
        ("all", 12, 9_216, 7_077_888, 7_114_752),
        pytest.param("attention+mlp", 24, 18_432, 14_155_776, 14_229_504, marks=pytest.mark.slow),
        ("first3", 3, 2_304, 1_769_472, 1_778_688),
    ],
)
def test_counts_of_bert_base(where, blocks, width, square, total):
    with torch.device("meta"):
        model = transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=4))
    summary = mhex.attach(model, 4, where).summary()
    check(summary, blocks, width, square, total)
    assert {row.kind for row in summary.rows} == {"token"}
    assert {row.gate for row in summary.rows} == {"unknown"}
    assert "unknown" in str(summary)


def test_counts_of_couplings():
    assert mhex.attach(resnet("resnet18"), 9, coupling="separate").summary().parameters == 713_600
    only = mhex.attach(resnet("resnet18"), 9, coupling="head_only").summary()
    assert (only.w1, only.w2, only.parameters) == (0, 9 * 1_920, 9 * 1_920)


@pytest.mark.parametrize(
    ("options", "state"),
    [
        ({"preset": "identity"}, "one"),
        ({"preset": "paper"}, "active"),
        ({"preset": "probe"}, "off"),
        ({"preset": "warmup"}, "off"),
        ({"coupling": "head_only"}, "none"),
    ],
)
def test_state_of_fresh_gates(options, state):
    summary = with_heads("tv_resnet", active=False, **options).summary()
    assert {row.gate for row in summary.rows} == {state}


def test_state_follows_the_gates():
    scaffold = with_heads("tv_resnet", active=False, preset="warmup")
    scaffold.ramp(5, 100)
    assert {(row.gate, row.strength) for row in scaffold.summary().rows} == {("active", 0.5)}
    assert "active (lambda = 0.5)" in str(scaffold.summary())
    with torch.no_grad():
        for block in scaffold.heads.blocks:
            block.w1.weight.zero_()
    assert {row.gate for row in scaffold.summary().rows} == {"constant"}  # 0.75 everywhere
    scaffold = with_heads("tv_resnet", active=False)
    with torch.no_grad():
        scaffold.heads["layer2.0"].w1.weight[3, 4] = 1e-20
    assert [row.gate for row in scaffold.summary().rows] == ["one", "active", "one", "one"]


def test_table_and_dictionary():
    scaffold = with_heads("tv_resnet")
    summary = scaffold.summary()
    page = str(summary)
    for text in (
        "layer1.0",
        "layer4.0",
        "262,144",
        f"{summary.parameters:,}",
        f"{summary.host_parameters:,}",
        "active",
    ):
        assert text in page
    last = summary.rows[-1]
    assert (last.name, last.kind, last.channels, last.w1, last.w2) == ("layer4.0", "map", 512, 262_144, 7 * 512)
    assert last.share == pytest.approx((262_144 + 7 * 512) / summary.host_parameters)
    assert sum(row.share for row in summary.rows) == pytest.approx(summary.share)
    plain = json.loads(json.dumps(summary.to_dict()))
    assert plain["parameters"] == sum(p.numel() for p in scaffold.head_parameters())
    assert plain["rows"][-1]["name"] == "layer4.0"


def test_stripped_heads_count_nothing():
    scaffold = with_heads("tv_resnet")
    scaffold.predict_from = "classifier"
    scaffold.strip_heads()
    assert scaffold.summary().w2 == 0
    assert scaffold.summary().w1 == 64**2 + 128**2 + 256**2 + 512**2
