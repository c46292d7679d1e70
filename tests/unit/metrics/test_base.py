"""The torchmetrics side of every metric."""

import copy
import math
import pickle
import warnings
from types import SimpleNamespace

import pytest
import torch

from mhex.errors import ArgumentError, MhexWarning
from mhex.metrics.aopc import AOPC
from mhex.metrics.average_drop import AverageDrop
from mhex.metrics.deletion import Deletion
from mhex.metrics.fidelity import Fidelity
from mhex.metrics.perturbation_auc import PerturbationAUC
from support.metric_results import ZERO, filled, results, same


@pytest.mark.parametrize("make", [Fidelity, AOPC, Deletion, PerturbationAUC])
@pytest.mark.parametrize("batches", [1, 64])
def test_batches_do_not_matter(make, batches):
    same(filled(5, make).compute(), filled(batches, make).compute())


def test_value_is_the_mean_of_singles():
    singles = [float(Fidelity(**ZERO).score(one)[0, 0]) for one in results(1)]
    assert filled().compute()["value"] == pytest.approx(sum(singles) / 12)


def test_what_compute_returns():
    found = filled(resamples=300, bootstrap_seed=4).compute()
    assert (found["n"], found["n_skipped"], found["bootstrap_seed"], found["resamples"]) == (12, 0, 4, 300)
    assert found["ci_low"] < found["value"] < found["ci_high"]
    assert list(found["all"]) == ["difference", "mif", "lif", "srg"]
    assert found["all"]["difference"]["value"] == found["value"]
    assert "reference=zero, steps=4" in found["protocol"]
    assert found["all"]["srg"]["ci_low"] == pytest.approx(found["ci_low"] / 100)


def test_srg_does_not_depend_on_the_rule_of_areas():
    """It is the mean gap of the curves, whether areas are of a percent axis or of one from 0 to 1."""
    percent, unit = filled(area="percent").compute()["all"], filled(area="unit").compute()["all"]
    assert percent["difference"]["value"] == pytest.approx(100 * unit["difference"]["value"])
    assert percent["srg"]["value"] == pytest.approx(unit["srg"]["value"])
    assert unit["srg"]["value"] == pytest.approx(unit["difference"]["value"])


def test_kinds_of_intervals():
    percentile, bca = filled().compute(), filled(interval="bca").compute()
    assert bca["interval"] == "bca"
    assert percentile["value"] == bca["value"]
    assert percentile["ci_low"] != bca["ci_low"]


def test_reset_forgets():
    metric = filled()
    metric.reset()
    for result in results(64):
        metric.update(result)
    same(metric.compute(), filled().compute())


def test_clones_and_copies_go_their_own_way():
    metric = filled()
    for other in (metric.clone(), copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        same(other.compute(), metric.compute())
        other.reset()
        assert metric.compute()["n"] == 12
        other.update(results(64)[0])
        same(other.compute(), metric.compute())


def test_merged_states():
    first, second, both = Fidelity(**ZERO), Fidelity(**ZERO), filled()
    for number, result in enumerate(results(5)):
        (first if number else second).update(result)
    first.merge_state(second)
    same(first.compute(), both.compute())


def test_forward_gives_the_batch_and_keeps_all():
    metric = Fidelity(**ZERO)
    for result in results(5):
        single = Fidelity(**ZERO)
        single.update(result)
        same(metric(result), single.compute())
    same(metric.compute(), filled().compute())


def test_images_without_numbers_all_count():
    whole = filled().compute()
    for use in ("update", "forward"):
        metric = Fidelity()
        for result in results(5):
            getattr(metric, use)(SimpleNamespace(area=result.area))
        found = metric.compute()
        assert found["n"] == 12
        assert found["value"] == pytest.approx(whole["value"])


def test_an_image_counts_once():
    metric = filled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metric.update(results(3)[1])  # as a sampler that fills the last shard
        same(metric.compute(), filled().compute())
        ids, rows = metric.rows()
    assert ids.tolist() == list(range(100, 112))
    assert rows.shape == (12, 3)


def test_different_images_under_one_number_are_told():
    metric = Fidelity(**ZERO)
    for result in results(6):
        metric.update(result, ids=range(6))
    with pytest.warns(MhexWarning, match=r"6 images .* ids="):
        assert metric.compute()["n"] == 6


def test_order_of_images_does_not_matter():
    metric = Fidelity(**ZERO)
    for result in reversed(results(1)):
        metric.update(result)
    same(metric.compute(), filled().compute())


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_nothing_gives_nan():
    found = Fidelity().compute()
    assert math.isnan(found["value"])
    assert math.isnan(found["all"]["srg"]["ci_high"])
    assert (found["n"], found["n_skipped"]) == (0, 0)
    metric = filled()
    metric.reset()
    assert math.isnan(metric.compute()["value"])


class Some(Fidelity):
    """Whose rows are given."""

    def score(self, rows):
        return rows


def test_skipped_images_are_counted():
    rows = torch.tensor([[1.0, 2.0, 3.0], [torch.nan, 1.0, 1.0], [3.0, 2.0, 1.0], [1.0, torch.inf, 1.0]])
    metric = Some()
    metric.update(rows, ids=range(4))
    found = metric.compute()
    assert (found["value"], found["n"], found["n_skipped"]) == (2.0, 2, 2)
    assert len(metric.rows()[0]) == 4
    metric.reset()
    metric.update(rows[1:2])
    found = metric.compute()
    assert math.isnan(found["value"])
    assert (found["n"], found["n_skipped"]) == (0, 1)


def test_wrong_updates():
    metric = Some()
    with pytest.raises(ArgumentError, match="ids of 4 images"):
        metric.update(torch.zeros(4, 3), ids=[1, 2])
    with pytest.raises(ArgumentError, match=r"3 numbers per image \(difference, mif, lif\)"):
        metric.update(torch.zeros(4))


def test_unknown_parts_of_a_protocol_are_refused():
    with pytest.raises(ArgumentError, match=r"cdam"):
        Fidelity("cdma")
    with pytest.raises(ArgumentError, match="has no part 'step'"):
        Fidelity(step=3)
    assert Fidelity(compute_on_cpu=True, sync_on_compute=False).compute_on_cpu


def test_direction():
    assert Deletion.higher_is_better is False
    assert AverageDrop().higher_is_better is True
    assert AverageDrop(mode="keep").higher_is_better is False
    assert AverageDrop.higher_is_better is True


def test_a_mean_over_correct_samples_leaves_wrong_ones_out():
    """Rows hold the two areas and whether the whole input was answered rightly."""
    rows = torch.tensor([[0.2, 0.6, 1.0], [0.8, 0.4, 0.0], [0.4, 0.8, 1.0]])
    summary = PerturbationAUC().summary(rows)
    torch.testing.assert_close(summary[3:], torch.tensor([0.3, 0.7]))
