"""Closed-form heads on hosts of several families."""

import pytest
import torch

import mhex
from mhex.heads.fit.ridge import RowSample
from mhex.heads.fit.run import Split
from support.models import FAMILIES, call
from support.tiny_bert import new_bert


def bert():
    torch.manual_seed(0)
    return new_bert(30, 2, 16, inner=24).double().eval()


def texts(rows, width):
    """Token ids of different lengths, padded; the class says which half of the vocabulary is used."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(rows) % 2
    ids = torch.randint(1, 15, (rows, width), generator=generator) + 15 * y[:, None]
    lengths = torch.randint(3, 8, (rows,), generator=generator)
    mask = (torch.arange(width) < lengths[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}, y


@pytest.mark.parametrize("method", ["ridge", "logistic"])
def test_text_does_not_depend_on_padding(method):
    found = []
    for extra in (0, 6):
        scaffold = mhex.attach(bert(), 2, preset="probe")
        inputs, y = texts(40, 8)
        padded = {k: torch.nn.functional.pad(v, (0, extra)) for k, v in inputs.items()}
        before = scaffold.model(**inputs).logits
        loader = [{**{k: v[i : i + 10] for k, v in padded.items()}, "labels": y[i : i + 10]} for i in range(0, 40, 10)]
        scaffold.fit(loader, method, strength=0.1)
        assert torch.equal(scaffold.model(**inputs).logits, before)
        assert min(scaffold.head_accuracy(loader)[name] for name in scaffold.names) > 0.9
        found.append([scaffold.equivalent_matrix(name) for name in scaffold.names])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", ["tv_resnet", "timm_convnext", "timm_vit", "hf_vit"])
def test_image_hosts(family):
    model = FAMILIES[family].fresh(torch.float32)
    scaffold = mhex.attach(model, 2, where="first2", preset="probe")
    y = torch.arange(24) % 2
    colour = torch.tensor([1.0, 0, -1])[:, None, None]
    x = torch.rand(24, 3, *FAMILIES[family].size) + 0.8 * y[:, None, None, None] * colour
    before = call(model, x)
    scaffold.fit((x, y), batch_size=8)
    assert torch.equal(call(model, x), before)
    found = scaffold.head_accuracy((x, y))
    assert list(found) == [*scaffold.names, "last_head"]  # the classifier has other classes
    assert min(found.values()) > 0.9


def test_split_trains_on_the_first_row_of_every_class_and_holds_out_the_second():
    labels = torch.tensor([0] * 11 + [1] + [2] * 2)
    y = torch.nn.functional.one_hot(labels, 3)
    held = Split()(y)
    assert held[:11].nonzero()[:, 0].tolist() == [1, 6]
    assert held[11:].tolist() == [False, False, True]
    split = Split()
    assert torch.equal(torch.cat([split(y[:5]), split(y[5:6]), split(y[6:])]), held)


def test_split_of_several_labels_goes_by_the_rarest():
    y = torch.zeros(40, 2)
    y[:, 0] = 1
    y[17, 1] = 1
    held = Split()(y)
    assert not held[17]
    assert int(held.sum()) == 8
    assert int(Split()(torch.zeros(10, 2)).sum()) == 2


def test_sample_is_spread_over_the_stream():
    sample = RowSample(limit=10)
    for start in range(0, 1000, 9):
        part = torch.arange(start, min(start + 9, 1000))
        sample.add(part, part * 2)
    one, two = sample.columns()
    assert torch.equal(two, 2 * one)
    assert 10 <= len(one) <= 20
    assert len(set(one.diff().tolist())) == 1
    assert one[-1] > 900
