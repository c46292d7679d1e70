"""Metrics in collections, and on other devices."""

import pytest
import torch
from torchmetrics import MetricCollection

from mhex.metrics.deletion import Deletion
from mhex.metrics.fidelity import Fidelity
from mhex.metrics.insertion import Insertion
from support.metric_results import ZERO, filled, results, same


class Some(Fidelity):
    """Whose rows are given."""

    def score(self, rows):
        return rows


def test_collections_share_nothing_by_chance():
    """Metrics whose first batch is equal are still two: torchmetrics would update one of them only."""

    class Other(Some):
        def score(self, rows):
            return rows * (1 if float(rows.sum()) == 0 else -1)

    both = MetricCollection([Some(), Other()])
    both.update(torch.zeros(2, 3), ids=[0, 1])
    both.update(torch.ones(2, 3), ids=[2, 3])
    found = both.compute()
    assert (found["Some_value"], found["Other_value"]) == (0.5, -0.5)


def test_protocols_are_told_apart_in_collections():
    fine, coarse = ZERO, {**ZERO, "steps": 2}
    steps = MetricCollection({"fine": Deletion(**fine), "coarse": Deletion(**coarse), "again": Deletion(**coarse)})
    for result in results(5):
        steps.update(result)
    assert sorted(map(len, steps.compute_groups.values())) == [1, 2]


def test_a_collection_gives_what_its_metrics_give():
    both = MetricCollection([make(**ZERO) for make in (Deletion, Insertion, Fidelity)])
    for result in results(5):
        both.update(result)
    found = both.compute()
    for make in (Deletion, Insertion, Fidelity):
        assert found[f"{make.__name__}_value"] == pytest.approx(filled(make=make).compute()["value"])
    assert both.clone().compute()["Deletion_n"] == 12
    both.reset()
    for result in results(64):
        both(result)
    assert both.compute()["Insertion_value"] == pytest.approx(found["Insertion_value"])


def test_states_move_to_devices_and_stay_in_double():
    metric = filled()
    wanted = metric.compute()
    metric.float().to("cpu")
    assert all(part.dtype == torch.float64 for part in metric.values)
    same(metric.compute(), wanted)
    away = filled().to("meta")
    assert {part.device.type for part in (*away.values, *away.ids)} == {"meta"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_moves_to_a_gpu():
    metric = filled().to("cuda")
    assert metric.values[0].is_cuda
    same(metric.compute(), filled().compute())


def test_a_metric_holds_no_model():
    metric = filled()
    assert not list(metric.parameters())
    assert not list(metric.modules())[1:]
    assert not metric.state_dict()
