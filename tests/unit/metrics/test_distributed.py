"""Two processes that share the images find what one finds, also where one of them has none."""

import warnings

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from mhex.metrics.deletion import Deletion
from mhex.metrics.fidelity import Fidelity
from mhex.metrics.perturbation_auc import PerturbationAUC
from mhex.perturb import PerturbationSweep, Subject
from support.additive_models import Additive

COUNT = 7
METRICS = (Deletion, Fidelity, PerturbationAUC)
# Images of each of two processes. The last two fill their shards with images that come twice.
SHARDS = {
    "even": [[0, 1, 2, 3], [4, 5, 6]],
    "one without any": [list(range(COUNT)), []],
    "padded": [[0, 2, 4, 6], [1, 3, 5, 0]],
    "padded, one without any": [[0, 1, 2, 3, 4, 5, 6, 0, 1], []],
    "nobody has any": [[], []],
}


def judged(images, batch):
    """Metrics of some of the images, a few at a time."""
    random = torch.Generator().manual_seed(5)
    model = Additive(torch.randn(3, 16, generator=random))
    x, maps = torch.randn(2, COUNT, 4, 4, generator=random, dtype=torch.float64)
    maps = maps.round()  # with ties, which are broken by id
    label = torch.randint(0, 3, (COUNT,), generator=random)
    found = [make(reference="zero", steps=4) for make in METRICS]
    for start in range(0, len(images), batch):
        part = images[start : start + batch]
        subject = Subject(model, x[part, None], label[part], part)
        result = PerturbationSweep("zero", "pixel", 4)(subject, None, maps[part])
        for metric in found:
            metric.update(result)
    return found


def work(rank, folder):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)  # compute before update, which is what is tried
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    kept = {}
    for name, shards in SHARDS.items():
        metrics = judged(shards[rank], 2)
        kept[name] = [metric.compute() for metric in metrics]
        own = [sum(len(part) for part in metric.ids) for metric in metrics]
        assert own == [len(shards[rank])] * len(METRICS), "the images of a process are its own again"
    torch.save(kept, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    mp.spawn(work, (str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
@pytest.mark.parametrize("name", SHARDS)
@pytest.mark.slow
def test_two_processes_find_what_one_finds(found, name):
    images = [] if name == "nobody has any" else list(range(COUNT))
    for batch in (1, 64):
        one = [metric.compute() for metric in judged(images, batch)]
        for rank in range(2):
            for alone, together in zip(one, found[rank][name], strict=True):
                assert (together["n"], together["n_skipped"]) == (len(images), 0)
                for output, values in alone["all"].items():
                    assert together["all"][output] == pytest.approx(values, nan_ok=True), output
