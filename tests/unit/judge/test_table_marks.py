"""What tables mark: the best methods, never a control, and methods that random maps are not told from."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mhex.stats.comparison import pair_tests
from mhex.stats.simultaneous import holm
from support.reports import report_of


def noise(n: int, seed: int, scale: float = 0.02) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def numbers(n: int) -> dict[str, Tensor]:
    """Lower is better: two good methods, one like random maps, and a control that is better than all."""
    base = noise(n, 9, 0.3)
    return {
        "gae": base + 0.2 + noise(n, 1),
        "cdam": base + 0.2 + noise(n, 2),
        "rollout": base + 0.5 + noise(n, 3),
        "control:random": base + 0.5 + noise(n, 4),
        "control:gaussian": base + noise(n, 5),
    }


def test_controls_are_never_marked_and_take_nothing_from_methods() -> None:
    cells = {cell.method: cell for cell in report_of({"deletion": numbers(40)}).summary()}
    assert {name for name, cell in cells.items() if cell.marked} == {"gae", "cdam"}
    assert {name for name, cell in cells.items() if cell.doubtful} == {"rollout"}
    table = report_of({"deletion": numbers(40)}).table(width=200)
    assert "†" in next(line for line in table.splitlines() if line.startswith("rollout"))
    assert "not shown to be better than control:random" in table
    without = {name: values for name, values in numbers(40).items() if not name.startswith("control")}
    assert "†" not in report_of({"deletion": without}).table(width=200)


def test_higher_is_better_turns_it_round() -> None:
    turned = {name: -values for name, values in numbers(40).items()}
    cells = {cell.method: cell for cell in report_of({"insertion": turned}).summary()}
    assert {name for name, cell in cells.items() if cell.marked} == {"gae", "cdam"}
    assert {name for name, cell in cells.items() if cell.doubtful} == {"rollout"}


@pytest.mark.parametrize(("n", "few"), [(6, True), (7, False)])
def test_too_few_images_mark_nothing(n: int, few: bool) -> None:
    """Three methods have three pairs: the least p of six images, 3 / 32, is above 0.05, and of seven below."""
    report = report_of({"deletion": numbers(n)})
    assert (f"{n} samples are too few to show any difference" in report.table(width=200)) is few
    assert any(cell.marked for cell in report.summary()) is not few


def test_some_methods_are_corrected_for_their_own_pairs() -> None:
    table = torch.stack(list(numbers(12).values()), 1)
    whole = pair_tests(table)[0]
    some = whole.among([0, 2, 3])
    alone = pair_tests(table[:, [0, 2, 3]])[0]
    for name in ("first", "second", "n", "counts"):
        assert torch.equal(getattr(some, name), getattr(alone, name))
    assert torch.allclose(some.p, alone.p)
    assert torch.allclose(some.adjusted, alone.adjusted)
    gain, p = whole.against(3, [0, 4, 1])
    assert gain.tolist() == pytest.approx([float((table[:, m] - table[:, 3]).mean()) for m in (0, 4, 1)])
    pairs = [pair_tests(table[:, [m, 3]])[0].p for m in (0, 4, 1)]
    assert p.tolist() == pytest.approx(holm(torch.cat(pairs)))


def test_hits_have_exact_intervals_and_one_image_has_none() -> None:
    cells = {
        cell.method: cell
        for cell in report_of({"pointing-game": {"gae": torch.ones(8), "cdam": torch.zeros(8)}}).summary()
    }
    assert (cells["gae"].low, cells["gae"].high) == pytest.approx((0.025 ** (1 / 8), 1.0))  # all hits: 0.631
    assert (cells["cdam"].low, cells["cdam"].high) == pytest.approx((0.0, 1 - 0.025 ** (1 / 8)))
    (one,) = report_of({"deletion": {"gae": torch.tensor([0.8])}}).summary()
    assert math.isnan(one.low)
    assert one.text == "0.800 ± —"


def test_shares_of_hits_are_printed_with_both_ends() -> None:
    """An interval of a share is not symmetric: half its width beside 1.00 would reach beyond it."""
    report = report_of({"pointing-game": {"gae": torch.ones(10), "cdam": torch.zeros(10)}})
    assert [cell.text for cell in report.summary()] == ["1.00 (0.69 to 1.00)", "0.00 (0.00 to 0.31)"]
    for form in ("text", "markdown", "html", "latex"):
        table = " ".join(report.table(form).split())
        assert "1.00 (0.69 to 1.00)" in table
        assert "Shares of hits have their exact interval in brackets." in table
    (one,) = report_of({"pointing-game": {"gae": torch.ones(1)}}).summary()
    assert one.text == "1.00 (0.03 to 1.00)"


def test_few_samples_have_no_interval() -> None:
    values = torch.tensor([0.1, 0.9, 0.5, 0.4, 0.6, 0.2], dtype=torch.float64)
    for count, said in ((2, "0.50 ± —"), (5, "0.50 ± —"), (6, "0.45 ± 0.21")):
        report = report_of({"deletion": {"gae": values[:count]}})
        assert report.summary()[0].text == said
        assert ("over samples, from 6 of them on." in " ".join(report.table().split())) is (count < 6)


def test_an_image_counts_with_all_of_its_numbers_or_not_at_all() -> None:
    table = torch.rand(6, 3, dtype=torch.float64)
    gap = table.clone()
    gap[:4, 1] = math.nan
    report = report_of({"fidelity": {"gae": table, "cdam": gap}})
    cells = {(cell.method, cell.output): cell for cell in report.summary()}
    assert cells["cdam", "lif"].n == 2
    assert report.compare("fidelity", output=2)["gae", "cdam"].n == 2


def test_the_table_says_why_images_were_skipped() -> None:
    values = torch.ones(9, dtype=torch.float64)
    values[:2] = math.nan
    table = report_of({"pointing-game": {"gae": values}}).table(width=200)
    assert "n = 7 (2 skipped: no object in the mask)" in table
