"""Every setting of a recipe reaches what it is about: tried one by one, against formulas written out here."""

import math

import pytest
import timm
import torch
from torch import nn
from torch.nn import functional

import mhex
from mhex.inputs.preprocess import Preprocess
from mhex.lab.config.recipe import RecipeAugment, RecipeDistillation, RecipeHeads
from mhex.lab.datasets import ImageSet, TextSet, load_blood
from mhex.lab.train import run
from mhex.lab.train.augment import draw
from mhex.lab.train.evaluate import make_objective
from mhex.lab.train.loop import Loop, make_accelerator
from mhex.lab.train.objective import HeadsObjective, Objective, smoothed_targets
from mhex.lab.train.samples import ImageFeed, TextFeed, TrainingBatch, load_samples
from support.training import write_pets_and_cifar

CPU = torch.device("cpu")


class Points:
    """Random points with random labels: the smallest thing a loop can learn from."""

    def __init__(self, count=8):
        generator = torch.Generator().manual_seed(1)
        self.points = torch.randn(count, 5, generator=generator)
        self.labels = torch.randint(0, 3, (count,), generator=generator)

    def __len__(self):
        return len(self.labels)

    def plain(self, rows):
        return self.points[rows]

    def varied(self, rows, part, table, seed, step):
        return TrainingBatch(self.points[rows[part]], table[self.labels[rows[part]]])


@pytest.fixture
def loop(recipe, tmp_path):
    """A loop over a linear model, and a way to take steps on all points."""

    def make(steps=0, **settings):
        torch.manual_seed(0)
        part = {"batch": 8, "optimizer": "momentum", "momentum": 0.0, "rate": 0.5, "warmup": 0.0, **settings}
        made = recipe(train=part)
        model, points = nn.Linear(5, 3), Points()
        loop = Loop(made, tmp_path, make_accelerator("no"), Objective(model), points, points, torch.eye(3))
        for step in range(steps):
            loop.step(step, torch.arange(8), loop.objective, loop.optimizer)
        return loop

    return make


def gradient(loop):
    """Of the plain loss of all points, by torch itself."""
    points = loop.feed
    weights = [parameter.detach().clone().requires_grad_() for parameter in (loop.model.weight, loop.model.bias)]
    loss = functional.cross_entropy(functional.linear(points.points, *weights), points.labels)
    return torch.autograd.grad(loss, weights)


def change(loop, before):
    return torch.cat([(now.detach() - old).flatten() for now, old in zip(loop.model.parameters(), before, strict=True)])


def stepped(loop, step=0):
    """What one step changes, and the gradient it should follow."""
    slope = torch.cat([part.flatten() for part in gradient(loop)])
    before = [parameter.detach().clone() for parameter in loop.model.parameters()]
    loop.step(step, torch.arange(8), loop.objective, loop.optimizer)
    return change(loop, before), slope


def test_a_step_goes_down_the_gradient_and_is_clipped(loop):
    moved, slope = stepped(loop(schedule="constant"))
    torch.testing.assert_close(moved, -0.5 * slope)
    moved, slope = stepped(loop(schedule="constant", clip=0.01))
    assert slope.norm() > 0.1
    torch.testing.assert_close(moved, -0.5 * 0.01 * slope / slope.norm(), rtol=1e-3, atol=1e-7)


def test_the_schedule_moves_the_rate(loop):
    # Three epochs of one step each, so the second of three along a cosine has three quarters of the rate.
    moved, slope = stepped(loop(), step=1)
    torch.testing.assert_close(moved, -0.5 * 0.5 * (1 + math.cos(math.pi / 3)) * slope)


def test_the_average_is_what_is_judged_and_written(loop):
    made = loop(steps=4, ema=0.9)
    written, own = made.weights(), made.model.state_dict()
    assert written.keys() == made.average.state.keys()
    assert all(written[name] is value for name, value in made.average.state.items())
    assert (written["weight"] - own["weight"]).abs().max() > 1e-3
    points = made.feed
    logits = functional.linear(points.points, written["weight"], written["bias"])
    expected = functional.cross_entropy(logits, points.labels).item()
    assert made.validate(points)["loss"] == pytest.approx(expected, rel=1e-5)
    plain = functional.linear(points.points, own["weight"], own["bias"])
    assert abs(functional.cross_entropy(plain, points.labels).item() - expected) > 1e-3
    assert torch.equal(made.model.weight, own["weight"])
    assert loop(steps=1).weights().keys() == own.keys()


def test_teachers_have_their_share():
    torch.manual_seed(0)
    model, inputs, advice = nn.Linear(5, 3), torch.randn(4, 5), torch.randn(4, 3)
    targets = torch.eye(3)[[0, 1, 2, 0]]
    logits = model(inputs)
    own = functional.cross_entropy(logits, targets)
    soft = (advice / 2).softmax(1)
    taught = 4 * (soft * (soft.log() - (logits / 2).log_softmax(1))).sum(1).mean()
    loss = Objective(model, RecipeDistillation(teachers=("t",), share=0.25, temperature=2.0))(inputs, targets, advice)
    torch.testing.assert_close(loss, 0.75 * own + 0.25 * taught)
    torch.testing.assert_close(Objective(model)(inputs, targets, advice), own)


def test_teachers_have_the_weights_that_they_learned(blood, recipe, stored, tmp_path):
    classes = load_blood("test").classes
    made = recipe(name="teacher", data={"side": 24})
    learned = stored(made, tmp_path / "teacher", classes).model
    teacher = run.make_teacher(recipe(distil={"teachers": ["teacher"]}), classes, tmp_path / "small")
    assert teacher.views == (made.view,)
    state = teacher.members[0].state_dict()
    assert all(torch.equal(state[name], value) for name, value in learned.state_dict().items())
    assert not teacher.members[0].training


@pytest.fixture
def headed():
    """A network with heads after a forward pass, with the scores of its heads and its classifier."""
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=3)
    scaffold = mhex.attach(model, 3, preset="paper")
    inputs, targets = torch.randn(4, 3, 16, 16), torch.eye(3)[[0, 1, 2, 0]]

    def loss(**settings):
        part = RecipeHeads(preset="paper", **settings)
        value = HeadsObjective(model, scaffold, part)(inputs, targets)
        return value, list(scaffold.head_logits.values()), scaffold.reading.classifier

    return loss, targets


@pytest.mark.parametrize("classifier", [True, False])
def test_heads_add_up_as_the_recipe_says(headed, classifier):
    loss, targets = headed
    for reduction, count in (("sum", 1), ("mean", 5 if classifier else 4)):
        value, heads, own = loss(reduction=reduction, classifier=classifier)
        terms = [functional.cross_entropy(one, targets) for one in (*heads, *([own] if classifier else []))]
        assert len(terms) == (5 if classifier else 4)
        torch.testing.assert_close(value, sum(terms) / count)


@pytest.mark.parametrize("decay", [0.3, 1.0])
def test_summed_logits_decay_as_the_recipe_says(headed, decay):
    loss, targets = headed
    value, heads, _ = loss(mode="pretrain", decay=decay, classifier=False)
    summed = sum(decay ** (len(heads) - 1 - place) * one for place, one in enumerate(heads))
    torch.testing.assert_close(value, functional.cross_entropy(summed, targets))


def test_labels_are_smoothed_within_groups(data, recipe, tmp_path):
    write_pets_and_cifar(data)
    made = recipe(data={"name": "pets"}, train={"smoothing": 0.4})
    samples = load_samples(made)
    network, objective = make_objective(made, samples.train.classes, training=True)
    loop = run.make_loop(made, tmp_path, make_accelerator("no"), network, objective, samples)
    # 19 of the 37 breeds have even numbers, which is one species.
    assert loop.table[0, 0].item() == pytest.approx(0.6 + 0.4 / 19)
    assert loop.table[0, 2].item() == pytest.approx(0.4 / 19)
    assert loop.table[0, 1].item() == 0
    assert torch.equal(loop.table, smoothed_targets(37, 0.4, samples.train.group_of))


def test_padding_is_masked_and_real_tokens_are_not():
    class Tokenizer:
        pad_token_id = 0

        def __call__(self, texts, truncation, max_length):
            assert truncation
            return {"input_ids": [[int(word) for word in text.split()][:max_length] for text in texts]}

    texts = TextSet(texts=("4 5", "6 0 7 8 9", "3"), labels=torch.tensor([0, 1, 0]), classes=("a", "b"), split="train")
    feed = TextFeed(texts, Tokenizer(), 4, CPU, torch.arange(3))
    batch = feed.plain(torch.tensor([0, 1, 2]))
    assert batch["input_ids"].tolist() == [[4, 5, 0, 0], [6, 0, 7, 8], [3, 0, 0, 0]]
    # The second text holds the number of the padding itself.
    assert batch["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]
    assert feed.varied(torch.tensor([2, 1]), slice(1, 2), torch.eye(2), 0, 0).targets.tolist() == [[0, 1]]


def test_images_are_changed_on_a_canvas_of_their_own():
    images = torch.randint(0, 256, (4, 3, 20, 20), dtype=torch.uint8)
    cells = ImageSet(images=images, labels=torch.arange(4), classes=tuple("abcd"), split="train", names=tuple("abcd"))
    rows = torch.arange(4)
    for canvas, side in ((32, 32), (0, 16)):
        feed = ImageFeed(cells, Preprocess(16, 16), RecipeAugment(canvas=canvas), CPU, rows)
        batch = feed.varied(rows, slice(0, 2), torch.eye(4), 0, 0)
        assert batch.pixels.shape == (2, 3, side, side)
        assert batch.inputs.shape == (2, 3, 16, 16)


def test_drawn_rotations_keep_lengths_and_angles():
    calm = RecipeAugment(scale=(1, 1), ratio=(1, 1), rotate=90)
    matrices = draw(50, calm, torch.Generator().manual_seed(0)).matrices[:, :, :2]
    torch.testing.assert_close(matrices @ matrices.transpose(1, 2), torch.eye(2).expand(50, 2, 2))
    still = calm.model_copy(update={"flip": 0})
    matrices = draw(50, still, torch.Generator().manual_seed(0)).matrices[:, :, :2]
    torch.testing.assert_close(torch.linalg.det(matrices), torch.ones(50))
    assert matrices[:, 0, 1].abs().max() > 0.8
