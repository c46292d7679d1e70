"""Agreement and removal: closed forms on additive models, and the numbers of the metrics that they are made of."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import mhex
from mhex.errors import ArgumentError
from mhex.lab.truth.exact import BagOfWords
from mhex.metrics.agreement import AgreementProtocol, agreement
from mhex.metrics.case import Case
from mhex.metrics.registry import get_metric
from mhex.perturb import Subject
from support.nonlinear_models import image_case, text_case

SIDE = 16


class Weighted(nn.Module):
    """Logits that are sums of weighted pixels."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3, 3, SIDE, SIDE, generator=draw, dtype=torch.float64))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, 3)."""
        return torch.einsum("bchw,kchw->bk", images, self.weight)


def additive() -> tuple[Subject, Tensor]:
    """Images, and for each pixel what the predicted class loses where it becomes the mean colour."""
    images = torch.randn(4, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    subject = Subject(Weighted(), images)
    apart = images - images.mean((2, 3), keepdim=True)
    return subject, (apart * Weighted().weight[subject.predicted].detach()).sum(1)


def test_exact_contributions_agree_fully() -> None:
    subject, worth = additive()
    regions = AgreementProtocol(("mean",), count=10).ask(subject)
    ones = torch.ones(4, dtype=torch.float64)
    torch.testing.assert_close(agreement(regions, worth), ones)
    torch.testing.assert_close(agreement(regions, 5 - 2 * worth), -ones)  # boxes of one size: an offset says nothing
    assert agreement(regions, torch.ones_like(worth)).tolist() == [0.0] * 4
    assert bool((agreement(regions, torch.rand_like(worth)).abs() < 0.9).all())


def test_references_are_averaged() -> None:
    subject, worth = additive()
    both = agreement(AgreementProtocol(count=10).ask(subject), worth)
    single = [agreement(AgreementProtocol((name,), count=10).ask(subject), worth) for name in ("blur", "mean")]
    torch.testing.assert_close(both, (single[0] + single[1]) / 2)
    assert bool((single[0] < 1 - 1e-6).all())


def test_spans_of_words_agree_fully_with_exact_contributions() -> None:
    torch.manual_seed(0)
    model = BagOfWords().double().eval()
    ids = torch.tensor([[1, 2, 3, 4, 5, 6], [7, 8, 9, 0, 0, 0]])
    mask = (ids > 0).long()
    inputs = {"input_ids": ids, "attention_mask": mask, "special_tokens_mask": 1 - mask}
    subject = Subject(model, inputs)
    worth = (model.classes(model.embeddings(ids)) * mask[..., None]).detach()
    worth = worth[torch.arange(2), :, subject.predicted]
    regions = AgreementProtocol(("drop",), sizes=(1, 2), count=8).ask(subject)
    torch.testing.assert_close(agreement(regions, worth), torch.ones(2, dtype=torch.float64))


def test_all_maps_share_the_passes() -> None:
    """Two references, two sizes and five regions of four images, once for both methods."""
    data = [{"image": torch.rand(3, SIDE, SIDE)} for _ in range(4)]
    metric = ("agreement", {"sizes": (1, 2), "count": 5})
    costs = [
        mhex.evaluate(Weighted().float(), data, methods, [metric], controls=False).cost["passes"]
        for methods in (["input-x-gradient"], ["input-x-gradient", "occlusion"])
    ]
    assert costs == [80, 80]


@pytest.mark.parametrize("case", [image_case(), text_case()], ids=["images", "texts"])
def test_removal_has_the_numbers_of_its_metrics(case: Case) -> None:
    text = case.subject.batch.modality == "text"
    ending = "-text" if text else ""
    whole = get_metric("removal").metric("text" if text else "default")
    parts = {
        "agreement": get_metric("agreement").metric("text" if text else "default", count=24),
        "insertion": get_metric("insertion").metric(f"quick{ending}"),
        "deletion": get_metric("deletion").metric(f"quick{ending}"),
    }
    for metric in (whole, *parts.values()):
        metric.update(*metric.of(case))
    for column, metric in zip(whole.rows()[1].unbind(1), parts.values(), strict=True):
        torch.testing.assert_close(column, metric.rows()[1][:, 0])


@pytest.mark.parametrize("references", [(), ("blur", "drop"), ("impute",), ("grey",)])
def test_wrong_references_are_refused(references: tuple[str, ...]) -> None:
    with pytest.raises(ArgumentError):
        AgreementProtocol(references)


def test_references_of_texts_do_not_serve_images() -> None:
    with pytest.raises(ArgumentError, match="references of images"):
        AgreementProtocol(("drop",)).ask(additive()[0])
