"""Pictures of how gates and heads pull."""

import pytest
import torch
from matplotlib.text import Text

from mhex.errors import ArgumentError
from mhex.heads import Collaboration, ConfidenceMap, Study, pearson
from mhex.viz import confidence_figure, cosine_figure, forest_figure


def words(drawn):
    return [t.get_text() for t in drawn.findobj(Text) if t.get_text()]


def charts(drawn):
    return [axes for axes in drawn.axes if axes.get_label() == "chart"]


NAMES = ("layer1.0", "layer1.1", "layer2.0")


@pytest.fixture
def seen():
    cosine = torch.linspace(-0.9, 0.9, 30).reshape(10, 3)
    return Collaboration(cosine, NAMES, (*NAMES, "last"), torch.zeros(10).long(), torch.rand(10), torch.rand(10, 4))


def test_cosines(seen, tmp_path):
    drawn = seen.show()
    (axes,) = charts(drawn)
    said = words(drawn)
    assert set(NAMES) <= set(said)
    assert [len(dots.get_offsets()) for dots in axes.collections] == [10, 10, 10]
    assert axes.get_xlim()[1] >= 1
    assert axes.yaxis_inverted()
    medians = [f"{m:+.2f}".replace("-", "\N{MINUS SIGN}") for m in seen.cosine.double().quantile(0.5, 0).tolist()]
    assert set(medians) <= set(said)
    assert seen.save(tmp_path / "cosines.png").stat().st_size > 5000


@pytest.mark.parametrize("largest", [0.15, -0.15])
def test_small_cosines_get_a_shorter_axis(largest):
    drawn = cosine_figure(largest * torch.ones(4, 2), ["a", "b"])
    assert charts(drawn)[0].get_xlim()[1] == pytest.approx(0.208)
    assert "The axis ends at 0.2" in " ".join(words(drawn))


def test_long_names_keep_their_end():
    names = [f"a.model.with.very.deep.nesting.of.modules.in.modules.layer.{i}" for i in range(2)]
    said = words(cosine_figure(torch.rand(4, 2), names))
    assert sum(line.startswith("…") and line.endswith(("layer.0", "layer.1")) for line in said) == 2


def test_many_samples_and_one(seen):
    drawn = cosine_figure(torch.rand(5000, 3), NAMES)
    assert len(charts(drawn)[0].collections[0].get_offsets()) == 400
    assert any("400 of 5000" in line for line in words(drawn))
    cosine_figure(torch.zeros(1, 3), NAMES)


def test_confidence_map(tmp_path):
    maps = torch.zeros(2, 7, 7)
    maps[0, 2, 3] = 1
    image = torch.zeros(2, 3, 64, 64)
    result = ConfidenceMap(maps, 3 * maps - 1, image, torch.zeros(2), "keep", NAMES)
    drawn = result.show()
    said = words(drawn)
    assert {"sample 0", "sample 1", "sum of cosines"} <= set(said)
    assert any("\N{MINUS SIGN}1.00 to 2.00" in line for line in said)
    assert any("constant" in line for line in said)
    assert any("only this cell is visible" in line for line in said)
    panel = [axes for axes in drawn.axes if axes.get_label() == "panel"][1].images[0].get_array()
    bright = (panel.astype(int) != panel[0, 0].astype(int)).any(-1)
    # The cell of an image of 64 pixels, drawn four times as large.
    assert bright[4 * (2 * 64 // 7) : 4 * (3 * 64 // 7), 4 * (3 * 64 // 7) : 4 * (4 * 64 // 7)].all()
    assert bright.sum() == 16 * (3 * 64 // 7 - 2 * 64 // 7) * (4 * 64 // 7 - 3 * 64 // 7)
    assert result.save(tmp_path / "map.png").stat().st_size > 5000
    assert any("fall of the sum" in line for line in words(confidence_figure(maps, maps, image, "occlude")))
    with pytest.raises(ArgumentError):
        confidence_figure(maps, maps[:1], image, "keep")


def test_a_study_is_drawn_as_a_forest_of_intervals(seen, tmp_path):
    rows = tuple(
        pearson(torch.rand(10) if block != "layer2.0" else torch.ones(10), torch.rand(10), names=(block, other))
        for other in ("p_orig", "SAD")
        for block in NAMES
    )
    result = Study((*rows, pearson(torch.rand(10), torch.rand(10), names=("SAD", "p_orig"))), seen)
    drawn = result.show()
    assert [axes.get_xlabel() for axes in charts(drawn)] == ["r with p_orig", "r with SAD"]
    limits = {axes.get_xlim() for axes in charts(drawn)}
    assert len(limits) == 1
    assert max(abs(v) for row in rows if row.low == row.low for v in (row.low, row.high)) <= limits.pop()[1]
    said = words(drawn)
    assert set(NAMES) <= set(said)
    assert any("2 coefficients are not defined" in line for line in said)
    assert result.save(tmp_path / "study.svg").stat().st_size > 5000
    with pytest.raises(ArgumentError):
        forest_figure([])


def test_coefficients_whose_interval_holds_0_are_hollow():
    rows = [
        ("clear", "p_orig", 0.5, 0.2, 0.7),
        ("unclear", "p_orig", 0.1, -0.2, 0.4),
        ("below", "p_orig", -0.5, -0.7, -0.2),
    ]
    (axes,) = charts(forest_figure(rows))
    dots = {line.get_xdata()[0]: line.get_markerfacecolor() for line in axes.lines if line.get_marker() == "o"}
    assert {r for r, colour in dots.items() if colour == "white"} == {0.1}
    assert dots.keys() == {0.5, 0.1, -0.5}
