"""What follows from rows: comparisons, ranks, marks and tables."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from mhex.errors import ArgumentError, unknown_name
from mhex.metrics import get_metric
from mhex.stats.paired_tests import exchange, sign_flip
from support.pairs import paired
from support.reports import counts, report_of

NAN = math.nan


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def three(n: int = 40) -> dict[str, Tensor]:
    values = draw(n, 3) * 0.1 + torch.tensor([0.2, 0.5, 0.9])
    return dict(zip(("gae", "rollout", "cdam"), values.unbind(1), strict=True))


# Comparisons


def test_one_method_cannot_be_compared() -> None:
    alone = report_of({"deletion": {"gae": draw(8)}})
    with pytest.raises(
        ArgumentError, match=r"at least two methods to be compared, but got gae alone; the report has gae\.$"
    ):
        alone.compare("deletion")
    both = report_of({"deletion": three()})
    with pytest.raises(ArgumentError, match=r"got cdam alone; the report has gae, rollout, cdam\.$"):
        both.compare("deletion", ["cdam"])
    with pytest.raises(ArgumentError, match=r"got cdam alone; the report has gae, rollout, cdam\.$"):
        both.compare("deletion", "cdam")
    assert str(unknown_name("method", "gae", [])) == "Unknown method 'gae'. Known: none."


def test_a_string_is_one_name() -> None:
    report = report_of({"deletion": three(8), "insertion": three(8)})
    part = report.only("cdam", "insertion")
    assert (part.methods, part.metrics) == (["cdam"], ["insertion"])
    assert list(report.ranks("deletion", "gae", resamples=10)) == ["gae"]


def test_pairs_are_asked_for_in_either_order() -> None:
    values = three()
    found = report_of({"deletion": values}).compare("deletion")
    assert list(found) == [("gae", "rollout"), ("gae", "cdam"), ("rollout", "cdam")]
    there, back = found["gae", "cdam"], found["cdam", "gae"]
    wanted = paired(values["cdam"], values["gae"])
    assert back.difference == pytest.approx(wanted.difference)
    assert (back.low, back.high, back.effect) == pytest.approx((wanted.low, wanted.high, wanted.effect))
    assert (back.superiority, there.superiority) == (1.0, 0.0)
    assert back.adjusted == there.adjusted
    assert (back.n, back.p) == (there.n, there.p)
    turned = report_of({"deletion": values}).compare("deletion", ["cdam", "gae"])["cdam", "gae"]
    assert turned.difference == pytest.approx(back.difference)


def test_names_that_are_not_there() -> None:
    report = report_of({"deletion": three()})
    found = report.compare("deletion")
    with pytest.raises(ArgumentError, match=r"Unknown method 'rolout'. Did you mean 'rollout'"):
        found["gae", "rolout"]
    with pytest.raises(ArgumentError, match="names of two methods, but got"):
        found["gae", "gae"]
    with pytest.raises(ArgumentError, match="names of two methods, but got 'gae'"):
        found["gae"]  # type: ignore[index]
    for wrong in (lambda: report.compare("deletion", ["gae", "rolout"]), lambda: report.ranks("deletion", ["rolout"])):
        with pytest.raises(ArgumentError, match=r"Unknown method 'rolout'"):
            wrong()
    with pytest.raises(ArgumentError, match="each method once"):
        report.compare("deletion", ["gae", "gae"])
    with pytest.raises(ArgumentError, match=r"Unknown method 'rolout'"):
        report.only(["gae", "rolout"])
    for call in (report.compare, report.ranks, report.values):
        with pytest.raises(ArgumentError, match=r"Unknown metric 'deletions'. Did you mean 'deletion'"):
            call("deletions")


@pytest.mark.parametrize("n", [10, 60])
def test_values_that_are_no_means_are_compared_as_they_are_printed(n: int) -> None:
    numbers = {"gae": counts(n, 1, 1.0), "rollout": counts(n, 2), "cdam": counts(n, 3, 0.9)}
    report = report_of({"segmentation": numbers})
    cells = {cell.method: cell for cell in report.summary() if cell.output == "miou"}
    found = report.compare("segmentation")
    for (one, other), pair in found.items():
        assert pair.difference == pytest.approx(cells[one].value - cells[other].value, abs=1e-12)
    metric = get_metric("segmentation").metric()
    means = {name: float(metric.summary(rows[:, None])[:, 0].mean()) for name, rows in numbers.items()}
    assert abs(means["gae"] - means["rollout"] - found["gae", "rollout"].difference) > 1e-3  # not of single images
    first = found["gae", "cdam"]
    wanted = float(exchange(numbers["gae"], numbers["cdam"], lambda rows: metric.summary(rows)[..., :1], flips=3000))
    assert first.p == pytest.approx(wanted, abs=0.03)
    assert math.isnan(first.effect)
    assert report.compare("segmentation", output=1)["gae", "rollout"].difference != found["gae", "rollout"].difference
    marked = {cell.method for cell in cells.values() if cell.marked}
    worse = {b if pair.difference > 0 else a for (a, b), pair in found.items() if pair.adjusted < 0.05}
    assert marked == set(numbers) - worse


def test_pairs_have_their_own_images() -> None:
    values = three(60)
    values["sparse"] = torch.full((60,), NAN, dtype=torch.float64)
    values["sparse"][:4] = 0.1
    report = report_of({"insertion": values})
    found = report.compare("insertion")
    assert (found["gae", "cdam"].n, found["sparse", "cdam"].n) == (60, 4)
    cells = {cell.method: cell for cell in report.summary()}
    assert {name for name, cell in cells.items() if cell.marked} == {"cdam", "sparse"}
    assert (cells["sparse"].n, cells["sparse"].skipped, cells["cdam"].tested) == (4, 56, (4, 60))
    text = report.table(width=300)
    assert "insertion: n = 60; n = 4 (56 skipped) of sparse; pairs were tested on 4 to 60 samples; reference=" in text
    assert "pairs were tested" not in report.only(["gae", "cdam"]).table(width=300)


def test_a_number_of_some_images_alone_says_on_how_many_it_was_tested() -> None:
    right = torch.arange(30) < 18
    numbers = {
        name: torch.cat([draw(30, 2, seed=k), right[:, None].double()], 1) for k, name in enumerate(("gae", "cdam"))
    }
    report = report_of({"perturbation-auc": numbers})
    assert "pairs were tested on 18 to 30 samples" in report.table(outputs="all", width=300)
    assert "pairs were tested" not in report.table(width=300)


def test_first_outputs_are_those_of_all() -> None:
    report = report_of({"segmentation": {"gae": counts(12, 1, 1.0), "cdam": counts(12, 2)}, "deletion": three(12)})
    every = report.summary(resamples=200)
    assert report.summary(resamples=200, outputs="first") == [
        cell for cell in every if cell.output in ("miou", "value")
    ]
    assert {cell.output for cell in every if cell.tested is None} == {"best_threshold"}
    with pytest.raises(ArgumentError, match="outputs 'first' or 'all'"):
        report.summary(outputs="some")


# Ranks


def test_methods_are_ranked_in_the_direction_of_the_metric() -> None:
    values = three()
    report = report_of({"deletion": values, "insertion": values, "segmentation": {"gae": counts(40)}})
    found = report.ranks("deletion")  # lower is better
    assert list(found) == ["gae", "rollout", "cdam"]
    assert list(report.ranks("insertion")) == ["cdam", "rollout", "gae"]
    per_image = torch.stack(list(values.values()), 1).argsort(1).argsort(1).double() + 1
    for name, wanted in zip(values, per_image.mean(0).tolist(), strict=True):
        assert found[name].rank == pytest.approx(wanted)
        assert found[name].rank_low <= wanted <= found[name].rank_high
    assert found["gae"].first == 1.0
    assert found["gae"].n == 40
    assert [found[name].place for name in values] == [1, 2, 3]
    assert list(report.ranks("deletion", ["cdam", "gae"])) == ["gae", "cdam"]
    with pytest.raises(ArgumentError, match="Neither high nor low is better for 'segmentation'"):
        report.ranks("segmentation", output=6)


def test_ranks_of_values_that_are_no_means() -> None:
    numbers = {"cdam": counts(50, 2), "gae": counts(50, 1, 2.0), "rollout": counts(50, 3, 1.9)}
    report = report_of({"segmentation": numbers})
    found = report.ranks("segmentation")
    cells = sorted((c for c in report.summary() if c.output == "miou"), key=lambda cell: -cell.value)
    assert list(found) == [cell.method for cell in cells]
    assert (found["cdam"].place, found["cdam"].place_low, found["cdam"].place_high) == (3, 3, 3)
    assert 0 < found["gae"].first < 1
    assert sum(one.first for one in found.values()) == pytest.approx(1)
    assert math.isnan(found["gae"].rank)


def test_ranks_need_the_same_images() -> None:
    values = three(10)
    values["gae"][:4] = NAN
    report = report_of({"deletion": values})
    assert report.ranks("deletion")["cdam"].n == 6
    values["rollout"][4:] = NAN
    with pytest.raises(ArgumentError, match=r"the methods have 4 to 10 of 10 images; leave out"):
        report_of({"deletion": values}).ranks("deletion")


# Tables


def odd_names() -> Any:
    values = dict(zip(("a_b", "lrp"), draw(2, 12), strict=True))
    values["empty"] = torch.full((12,), NAN, dtype=torch.float64)
    options = {"lrp": {"rule": r"50% & #1 <b>{x}|y\z~^$ * `q`"}}
    return report_of({"deletion": values}, options=options)


def test_names_are_escaped() -> None:
    report = odd_names()
    latex = report.table("latex")
    named = r"lrp (rule=50\% \& \#1 \textless{}b\textgreater{}\{x\}\textbar{}y\textbackslash{}z\textasciitilde{}"
    assert named + r"\textasciicircum{}\$ * `q`) & " in latex
    assert r"a\_b & " in latex
    assert r"deletion $\downarrow$ \\ \hline" in latex
    assert r" $\pm$ " in latex
    rows = [line for line in latex.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 3
    assert all(line.startswith("%") for line in latex.split(r"\end{tabular}")[1].strip().splitlines())
    page = report.table("html")
    assert "<td>lrp (rule=50% &amp; #1 &lt;b&gt;{x}|y" in page
    assert "<b>{x}" not in page
    markdown = [line for line in report.table("markdown").splitlines() if line.startswith("| lrp")]
    assert r"#1 \<b>{x}\|y\\z~^$ \* \`q\`) |" in markdown[0]
    text = report.table(width=200)
    assert r"lrp (rule=50% & #1 <b>{x}|y\z~^$ * `q`)" in text


def test_nothing_is_a_dash_with_what_was_skipped() -> None:
    report = odd_names()
    assert next(x for x in report.table(width=200).splitlines() if x.startswith("empty")).endswith("— (12 skipped)")
    assert r"empty & --- (12 skipped) \\" in report.table("latex")
    assert "<td>empty</td><td>— (12 skipped)</td>" in report.table("html")
    assert "| empty | — (12 skipped) |" in report.table("markdown")
    wrong = torch.cat([draw(8, 2), torch.zeros(8, 1).double()], 1)  # no image was right
    lines = report_of({"perturbation-auc": {"gae": wrong}}).table("markdown", "all").splitlines()
    assert lines[2].endswith("| — | — |")


def test_wide_tables_fit_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["deletion", "insertion", "aopc", "log-odds", "pointing-game", "increase-in-confidence"]
    names += ["soft-average-drop", "comprehensiveness", "sufficiency", "energy-pointing-game"]
    long = "integrated-gradients"
    values = {"gae": draw(15), long: draw(15, seed=1)}
    options = {long: {"steps": 50, "baseline": "blur", "multiply": True}}
    report = report_of(dict.fromkeys(names, values), options=options)
    monkeypatch.setenv("COLUMNS", "80")
    text = report.table()
    assert max(map(len, text.splitlines())) <= 80
    assert str(report) == text
    heads = [line for line in text.splitlines() if line.startswith("method")]
    assert len(heads) > 2
    for name in names:
        assert len(re.findall(rf"(?m)(^| ){name} [↑↓]", text)) == 1
    assert text.count("gae ") == len(heads)
    assert sum(line.strip() == "↑" for line in text.splitlines()) == 0
    assert text.count("±") == 2 * len(names) + 1
    wide = report.table(width=1000).splitlines()
    assert wide[0].startswith("method")
    assert all(name in wide[0] for name in names)
    assert wide[2].startswith("gae")


def test_flips_are_those_of_the_values() -> None:
    """Sparse or not, p is that of the differences on common images."""
    values = {"gae": draw(11), "cdam": draw(11, seed=1)}
    values["gae"][2] = NAN
    found = report_of({"deletion": values}).compare("deletion")["gae", "cdam"]
    d = (values["gae"] - values["cdam"])[torch.arange(11) != 2]
    assert found.p == float(sign_flip(d))
