"""Methods that find out while they run that they cannot explain a model: passed over among all, refused by name."""

import pytest
import timm
import torch

import mhex
from mhex.errors import ArgumentError, MhexWarning, UnsupportedModelError
from mhex.judge.report import evaluations
from mhex.methods import all_methods

LARGE = torch.rand(2, 3, 72, 72)  # 82 tokens, of which attention-flow takes at most 64
SHAPE = {"img_size": 72, "patch_size": 8, "embed_dim": 8, "depth": 1, "num_heads": 2, "num_classes": 3}


@pytest.fixture
def vit(monkeypatch):
    """A small Vision Transformer, with two methods to choose from."""
    entries = {name: spec for name, spec in all_methods().items() if name in ("attention", "attention-flow")}
    monkeypatch.setattr("mhex.judge.plan.all_methods", lambda: entries)
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", **SHAPE).eval()


def test_among_all_a_method_that_cannot_is_left_out_with_a_warning(vit):
    with pytest.warns(MhexWarning, match="left out. attention-flow: .*64 tokens"):
        report = mhex.evaluate(vit, LARGE, "all", ["compactness"], batch_size=1, controls=False)
    assert report.methods == ["attention"]
    assert report.per_image("compactness")["attention"].isfinite().all()


def test_by_name_it_is_refused(vit):
    with pytest.raises(UnsupportedModelError, match="64 tokens"):
        mhex.evaluate(vit, LARGE, ["attention", "attention-flow"], ["compactness"], controls=False)


def test_all_without_any_that_can_is_refused(vit, monkeypatch):
    entries = {"attention-flow": all_methods()["attention-flow"]}
    monkeypatch.setattr("mhex.judge.plan.all_methods", lambda: entries)
    with pytest.warns(MhexWarning), pytest.raises(ArgumentError, match="a method that can"):
        mhex.evaluate(vit, LARGE, "all", ["compactness"], controls=False)


@pytest.mark.parametrize("folder", [False, True])
def test_one_that_refuses_a_later_sample_has_no_rows_at_all(vit, tmp_path, folder):
    """A first image of 50 tokens, and a second of 82."""
    vit = timm.create_model("vit_tiny_patch16_224", **{**SHAPE, "dynamic_img_size": True}).eval()
    data = [torch.rand(3, size, size) for size in (56, 72, 56)]
    options = {"batch_size": 1, "controls": False, "out": tmp_path / "out" if folder else None}
    options |= {"pictures": 2} if folder else {}
    if folder:  # rows that are not of the call in which it refuses stay
        mhex.evaluate(
            vit, data[:1], ["attention-flow"], ["insertion"], batch_size=1, controls=False, out=options["out"]
        )
    with pytest.warns(MhexWarning, match="left out. attention-flow: .*64 tokens"):
        report = mhex.evaluate(vit, data, "all", ["compactness", "deletion"], **options)
    assert report.methods == ["attention"]
    assert len(report.per_image("compactness")["attention"]) == 3
    if folder:
        saved = mhex.Report.load(options["out"])
        assert saved.only(metrics=["compactness", "deletion"]).methods == ["attention"]
        assert "attention-flow" not in saved.curves("deletion")[2]
        assert saved.only("attention-flow").metrics == ["insertion"]
        assert [list(maps) for maps in evaluations(options["out"])[0].drawn.values()] == [["attention"]] * 2
