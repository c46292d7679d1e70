"""Reports that are put together: what is paired, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.judge import Report, store
from support.reports import report_of


def draw(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def one(name: str, values: Tensor, ids: dict[int, str] | None = None, **options: Any) -> Any:
    return report_of({"deletion": {name: values}}, ids, **options)


def numbered(digests: str, start: int = 0) -> dict[int, str]:
    return dict(enumerate(digests, start))


def test_samples_are_paired_by_what_they_are() -> None:
    first, second = draw(6), draw(6, 1)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    shuffled = {int(k): "abcdef"[k] for k in order}
    joined = one("gae", first, numbered("abcdef")).merge(one("cdam", second[order], shuffled))
    ids, values = joined.values("deletion")
    assert ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert torch.equal(values["cdam"][:, 0], second)
    assert joined.compare("deletion")["gae", "cdam"].difference == pytest.approx(float((first - second).mean()))


def test_other_numbers_draw_other_ties_and_boxes() -> None:
    turned = dict(enumerate(reversed("abcdef")))
    with pytest.raises(ArgumentError, match="the 6 that they share have other numbers"):
        one("gae", draw(6), numbered("abcdef")).merge(one("cdam", draw(6, 1), turned))


def test_the_order_of_reports_does_not_matter() -> None:
    first = one("gae", draw(4), numbered("abcd"))
    far = report_of({"deletion": {"gae": draw(2, 2), "cdam": draw(2, 3)}}, numbered("xy", 8))
    near = one("cdam", draw(4, 1), numbered("abcd"))
    assert first.merge(far, near).compare("deletion")["gae", "cdam"].n == 6
    assert first.merge(near, far).compare("deletion")["gae", "cdam"].n == 6


def test_the_same_rows_count_once() -> None:
    report = one("gae", draw(5))
    again = report.merge(report, one("cdam", draw(5, 1)), report)
    assert again.rows.num_rows == 10
    rounded = report.merge(one("gae", draw(5) * (1 + 1e-6)))
    assert torch.equal(rounded.values("deletion")[1]["gae"], report.values("deletion")[1]["gae"])
    nothing = draw(5)
    nothing[2] = math.nan
    assert one("gae", nothing).merge(one("gae", nothing)).rows.num_rows == 5


def test_values_that_disagree_are_refused() -> None:
    other = draw(5)
    other[3] += 0.01
    with pytest.raises(
        ArgumentError, match=r"one value of 'deletion' \(value\) for 'gae' on image 3.*number samples differently"
    ):
        one("gae", draw(5)).merge(one("gae", other))
    other[3] = math.nan
    with pytest.raises(ArgumentError, match="on image 3"):
        one("gae", draw(5)).merge(one("gae", other))


def test_other_models_are_refused() -> None:
    with pytest.raises(ArgumentError, match="one model, task, target and seed, but got model net and other"):
        one("gae", draw(5)).merge(one("cdam", draw(5, 1), model="other"))


def test_samples_that_differ_where_others_do_not_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"got 2 with another input, .* such as image 1"):
        one("gae", draw(4), numbered("abcd")).merge(one("cdam", draw(4), numbered("axcy")))
    more = one("gae", draw(4), numbered("abcd")).merge(one("cdam", draw(6, 1), numbered("abcdef")))
    assert more.compare("deletion")["gae", "cdam"].n == 4
    assert len(more.values("deletion")[0]) == 6


def test_windows_of_one_data_set_have_some_samples_in_common() -> None:
    joined = one("gae", draw(6), numbered("abcdef")).merge(one("cdam", draw(6, 1), numbered("defghi", 3)))
    pair = joined.compare("deletion")["gae", "cdam"]
    assert (pair.n, len(joined.values("deletion")[0])) == (3, 9)
    assert pair.difference == pytest.approx(float((draw(6)[3:] - draw(6, 1)[:3]).mean()))


def test_methods_without_a_common_sample_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"no sample in common .*, and only one has 'cdam' for 'deletion'"):
        one("gae", draw(4), numbered("abcd")).merge(one("cdam", draw(4), numbered("wxyz")))


def test_more_samples_of_the_same_methods_are_added() -> None:
    """Parts of a data set that were judged one by one, each numbered from 0."""
    parts = [
        report_of({"deletion": {"gae": draw(4, k), "cdam": draw(4, k + 10)}}, numbered(digests))
        for k, digests in enumerate(("abcd", "wxyz"))
    ]
    whole = parts[0].merge(parts[1])
    ids, values = whole.values("deletion")
    assert sorted(ids.tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]
    pair = whole.compare("deletion")["gae", "cdam"]
    assert pair.n == 8
    d = torch.cat([draw(4, 0) - draw(4, 10), draw(4, 1) - draw(4, 11)])
    assert pair.difference == pytest.approx(float(d.mean()))
    assert sorted((values["gae"] - values["cdam"])[:, 0].tolist()) == pytest.approx(sorted(d.tolist()))
    assert whole.merge(parts[1]).rows.num_rows == whole.rows.num_rows


def test_other_metrics_may_have_other_samples() -> None:
    """As where only some images have masks."""
    joined = one("gae", draw(4), numbered("abcd")).merge(
        report_of({"insertion": {"gae": draw(2), "cdam": draw(2, 1)}}, numbered("xy"))
    )
    assert [len(joined.values(name)[0]) for name in ("deletion", "insertion")] == [4, 2]


def test_copies_of_a_sample_are_told_by_their_numbers() -> None:
    joined = one("gae", draw(3), {0: "a", 1: "a", 2: "b"}).merge(one("cdam", draw(3, 1), {1: "a", 2: "b", 9: "a"}))
    ids, values = joined.values("deletion")
    assert ids.tolist() == [0, 1, 2, 9]
    assert values["cdam"][1:, 0].tolist() == draw(3, 1).tolist()
    assert joined.compare("deletion")["gae", "cdam"].n == 2


def test_other_settings_of_a_metric_are_refused() -> None:
    usual = one("gae", draw(4))
    with pytest.raises(ArgumentError, match=r"'deletion' to be measured in one way.*steps=100.*steps=20"):
        usual.merge(one("cdam", draw(4), changes={"steps": 20}))
    rows = [{**row, "protocol": "reference=black"} for row in one("cdam", draw(4)).rows.to_pylist()]
    with pytest.raises(ArgumentError, match="measured in one way"):
        usual.merge(Report(store.as_table(rows)))


def test_numbers_of_other_data_in_one_folder_are_kept_apart() -> None:
    """A folder may have rows of two data sets."""
    rows = [
        *one("gae", draw(3), numbered("abc")).rows.to_pylist(),
        *one("gae", draw(3, 1), numbered("xyz")).rows.to_pylist(),
    ]
    _, values = Report(store.as_table(rows)).values("deletion")
    assert sorted(values["gae"][:, 0].tolist()) == sorted([*draw(3).tolist(), *draw(3, 1).tolist()])
