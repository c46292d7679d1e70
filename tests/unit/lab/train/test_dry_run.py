"""What cannot work is told in a sentence, before the first step and before anything is written."""

import pytest
import torch
from train_helpers import NEWS, break_at, same

from mhex.errors import ArgumentError
from mhex.lab.train import run
from mhex.lab.train.dry_run import check_length, try_step
from mhex.lab.train.evaluate import make_objective
from mhex.lab.train.loop import DivergedError, Pace, make_accelerator
from mhex.lab.train.run import train
from mhex.lab.train.samples import load_samples
from support.training import write_news
from support.zoo_models import write_bert

VIT = {"architecture": "vit_tiny_patch16_224", "arguments": {"img_size": 32, "depth": 1, "embed_dim": 24}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"model": VIT},
            r"small: vit_tiny_patch16_224 cannot take 8 samples at 16 px\. .*height \(16\).*Check data\.side",
        ),
        ({"train": {"batch": 1}}, r"cannot take 1 sample at 16 px\. .*more than 1 value per channel.*train\.batch"),
        ({"train": {"batch": 8, "accumulate": 8}}, r"cannot take 1 sample at 16 px"),
        ({"model": {"extra": {"drop_rate": "x"}}}, r"could not convert string to float: 'x'.*model\.extra"),
        ({"model": {"arguments": {"act_layer": "foo"}}}, r"timm cannot make 'test_resnet' with .*KeyError: 'foo'\."),
        ({"model": {"arguments": {"channels": [-1, 2]}}}, r"timm cannot make .*negative dimension"),
        ({"train": {"optimizer": "adahessian"}}, r"train\.optimizer: adahessian cannot take a step here\. .*grad"),
        ({"train": {"optimizer": "sgd", "rate": 1e300}}, r"sgd cannot take a step here.*overflow.*train\.rate"),
    ],
)
def test_what_cannot_work_is_told(blood, recipe, tmp_path, monkeypatch, changes, words):
    break_at(monkeypatch, 0)
    with pytest.raises(ArgumentError, match=words) as caught:
        train(recipe(**changes), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="these optimizers work on a GPU")
def test_optimizers_that_need_a_gpu_are_refused(blood, recipe, tmp_path):
    with pytest.raises(ArgumentError, match=r"train\.optimizer: fusedadam cannot be made here.*choose another one\."):
        train(recipe(train={"optimizer": "fusedadam"}), tmp_path / "out")


def test_a_first_loss_that_is_no_number_is_told(blood, recipe, tmp_path, monkeypatch):
    break_at(monkeypatch, 0)
    with pytest.raises(DivergedError, match=r"The first loss of small is .*data\.std"):
        train(recipe(data={"std": [1e-39, 1e-39, 1e-39]}), tmp_path / "out")


def test_weights_that_are_no_numbers_are_never_kept(blood, recipe, tmp_path, monkeypatch):
    real = run.Loop.step

    def spoil(self, step, *rest):
        loss = real(self, step, *rest)
        if step == 3:  # the last of an epoch, so that no later loss tells
            torch.nn.init.constant_(self.model.fc.weight, float("nan"))
        return loss

    monkeypatch.setattr(run.Loop, "step", spoil)
    with pytest.raises(DivergedError, match=r"weights of small are no numbers any more after step 4"):
        train(recipe(train={"epochs": 1}), tmp_path / "out")
    assert not (tmp_path / "out" / "checkpoint").exists()


def test_the_trial_leaves_no_trace(blood, recipe, tmp_path):
    made = recipe(heads={"preset": "warmup"}, train={"ema": 0.5})
    samples = load_samples(made)
    network, objective = make_objective(made, samples.train.classes, training=True)
    loop = run.make_loop(made, tmp_path, make_accelerator("no"), network, objective, samples)
    before = {name: value.clone() for name, value in network.model.state_dict().items()}
    try_step(loop)
    assert same(network.model.state_dict(), before)
    assert same(loop.average.state, before)
    assert not loop.optimizer.state
    assert all(parameter.grad is None for parameter in network.model.parameters())


def test_texts_longer_than_a_network_reads_are_refused(data, recipe, tmp_path):
    write_news(data)
    write_bert(data / "bert")
    made = recipe(**NEWS)
    with pytest.raises(ArgumentError, match="cannot read 25 tokens"):
        train(recipe("data.length=25", **NEWS), tmp_path / "out")
    network, _ = make_objective(made, ("a", "b"), training=True)
    check_length(made, network)
    with pytest.raises(ArgumentError, match=r"cannot read 25 tokens\. Lower data\.length; .* names 24 positions"):
        check_length(recipe("data.length=25", **NEWS), network)
    network.model.config.max_position_embeddings = 30  # as in RoBERTa, which needs some of them itself
    with pytest.raises(ArgumentError, match=r"cannot read 25 tokens\. RuntimeError: .*Lower data\.length"):
        check_length(recipe("data.length=25", **NEWS), network)


def test_a_batch_that_repeats_samples_is_told(blood, recipe, tmp_path):
    lines = []
    train(recipe(train={"epochs": 1, "batch": 40}), tmp_path / "out", pace=Pace(say=lines.append))
    assert "small: train.batch is 40, so every step sees the 32 samples more than once" in lines
    train(recipe(train={"epochs": 1, "batch": 32}), tmp_path / "other", pace=Pace(say=(fitting := []).append))
    assert not any("more than once" in line for line in fitting)
