"""Several threads and one model: results are those of one thread, or refused, and the model is as it was."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mhex
from mhex.capture import threads as turns
from mhex.capture.guard import untouched
from mhex.capture.threads import Shared, turn
from mhex.errors import CaptureError
from support.cases import assert_same, explain
from support.models import FAMILIES
from support.snapshot import Snapshot

METHODS = {"timm_vit": ("gae", "cdam", "attnlrp"), "timm_resnet": ("gradcam", "lrp", "input-x-gradient")}
SOON = 0.05  # seconds in which a thread that does not wait has long begun
LATE = 20.0  # seconds after which a test fails


class Net(nn.Module):
    """A small network that works otherwise in training: dropout and batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(self.norm(self.conv(x)).relu().mean((2, 3))))


def meanwhile(work: Callable[[], Any]) -> tuple[Callable[[Tensor], Tensor], threading.Thread]:
    """A target whose score is taken while another thread works; and that thread."""
    thread = threading.Thread(target=work, daemon=True)

    def score(logits: Tensor) -> Tensor:
        if not thread.ident:
            thread.start()
            thread.join(SOON)
        return logits[:, 0]

    return score, thread


@pytest.fixture
def companion() -> Any:
    """Another thread that is alive, as in notebooks and servers."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait, daemon=True)
    thread.start()
    yield
    over.set()
    thread.join()


@pytest.fixture
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """When an explanation begins, there is no other thread."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)


@pytest.mark.parametrize("name", METHODS)
def test_threads_explain_one_model(name: str) -> None:
    family = FAMILIES[name]
    model, inputs = family.fresh(), family.inputs(2)
    wanted = {method: explain(model, inputs, method).scores for method in METHODS[name]}
    before = Snapshot(model)
    with ThreadPoolExecutor(4) as pool:
        jobs = METHODS[name] * 3
        results = pool.map(lambda method: explain(model, inputs, method).scores, jobs)
        for method, scores in zip(jobs, results, strict=True):
            assert_same(scores, wanted[method], method)
    before.check()


def test_threads_explain_two_models() -> None:
    families = [FAMILIES["timm_vit"], FAMILIES["timm_resnet"]]
    models, inputs = [family.fresh() for family in families], [family.inputs(2) for family in families]
    wanted = [explain(*pair, "gradcam").scores for pair in zip(models, inputs, strict=True)]
    before = [Snapshot(model) for model in models]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda k: explain(models[k], inputs[k], "gradcam").scores, [0, 1] * 4))
    for k, scores in enumerate(results):
        assert_same(scores, wanted[k % 2], "gradcam")
    for snapshot in before:
        snapshot.check()


def test_a_part_of_a_model_is_explained_after_the_whole(companion: Any) -> None:
    model, x = Net().eval(), torch.randn(2, 3, 8, 8)
    order: list[str] = []

    def run() -> None:
        with untouched(model.conv):
            order.append("part")

    score, thread = meanwhile(run)
    mhex.explain(model, x, "gradcam", lambda logits: (score(logits), order.append("whole"))[0])
    thread.join(LATE)
    assert order[-1] == "part"
    assert "whole" in order


def test_settings_of_the_process_end_with_the_last_user() -> None:
    def fast() -> bool:
        return bool(torch.backends.mha.get_fastpath_enabled())

    assert fast()
    first, second = untouched(Net()), untouched(Net())
    first.__enter__()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(second.__enter__).result()
        first.__exit__(None, None, None)
        assert not fast(), "the other thread still needs it"
        pool.submit(second.__exit__, None, None, None).result()
    assert fast()


def test_shared_settings_are_made_once() -> None:
    made: list[str] = []

    class Setting:
        def __enter__(self) -> None:
            made.append("on")

        def __exit__(self, *_: object) -> None:
            made.append("off")

    shared = Shared(Setting)
    with shared(), shared():
        assert made == ["on"]
    with shared():
        pass
    assert made == ["on", "off", "on", "off"]


def test_a_training_pass_waits_and_is_right(companion: Any) -> None:
    model, calm, x = Net().train(), Net().train(), torch.randn(4, 3, 8, 8)
    model.drop.p = calm.drop.p = 0.0
    calm(x).sum().backward()
    wanted = mhex.explain(Net(), x, "gradcam", 0).scores
    finished = threading.Event()

    def train() -> None:
        model(x).sum().backward()
        finished.set()

    score, thread = meanwhile(train)

    def watch(logits: Tensor) -> Tensor:
        value = score(logits)
        assert not finished.is_set(), "it would be trained in evaluation mode"
        return value

    scores = mhex.explain(model, x, "gradcam", watch).scores
    thread.join(LATE)
    assert finished.is_set()
    assert torch.equal(scores, wanted)
    for parameter, other in zip(model.parameters(), calm.parameters(), strict=True):
        assert torch.equal(parameter.grad, other.grad)
    assert torch.equal(model.norm.running_mean, calm.norm.running_mean)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("form", ["wrapper", "in place"])
@pytest.mark.parametrize("fixture", ["_alone", "companion"])
@pytest.mark.parametrize("bare", [False, True])
def test_training_a_compiled_model_waits(form: str, fixture: str, bare: bool, request: pytest.FixtureRequest) -> None:
    """There is a form compiled for explanations, in which nothing waits and nothing is trained."""
    request.getfixturevalue(fixture)
    model, calm, x = Net().train(), Net().train(), torch.randn(4, 3, 8, 8)
    model.drop.p = calm.drop.p = 0.0
    torch._dynamo.reset()
    compiled: nn.Module = model
    if form == "wrapper":
        compiled = torch.compile(model, backend="eager")
    else:
        model.compile(backend="eager")
    mhex.explain(compiled, x, "occlusion", 0)
    finished = threading.Event()

    def train() -> None:
        compiled(x).sum().backward()
        finished.set()

    score, thread = meanwhile(train)

    def watch(logits: Tensor) -> Tensor:
        value = score(logits)
        assert not finished.is_set(), "it would be trained in evaluation mode"
        return value

    mhex.explain(model if bare else compiled, x, "occlusion", watch)
    thread.join(LATE)
    assert finished.is_set()
    calm(x).sum().backward()
    for parameter, other in zip(model.parameters(), calm.parameters(), strict=True):
        assert torch.equal(parameter.grad, other.grad)
    assert torch.equal(model.norm.running_mean, calm.norm.running_mean)
    assert not any(module._forward_pre_hooks for module in compiled.modules())


def test_a_thread_waits_also_while_the_model_is_compiled() -> None:
    """A compiler waits for threads of its own, which are not the model's."""
    model, calm, x = Net().train(), Net().train(), torch.randn(4, 3, 8, 8)
    model.drop.p = calm.drop.p = 0.0
    torch._dynamo.reset()
    begin = threading.Event()

    def train() -> None:
        begin.wait(LATE)
        model(x).sum().backward()

    thread = threading.Thread(target=train, daemon=True)
    thread.start()

    def slow(graph: torch.fx.GraphModule, examples: list[Tensor]) -> Callable[..., Any]:
        begin.set()
        thread.join(12 * SOON)
        assert thread.is_alive(), "it did not wait"
        return graph.forward

    mhex.explain(torch.compile(model, backend=slow), x, "integrated-gradients", steps=1, batch_size=4)
    thread.join(LATE)
    calm(x).sum().backward()
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), calm.parameters(), strict=True))


@pytest.mark.parametrize("fixture", ["_alone", "companion"])
def test_gradients_of_a_pass_from_before_are_not_lost(fixture: str, request: pytest.FixtureRequest) -> None:
    """Neither those that a thread takes that begins late, nor those of one that was there before."""
    request.getfixturevalue(fixture)
    model, x = Net().eval(), torch.randn(4, 3, 8, 8)
    loss = model(x).sum()
    wanted = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    score, thread = meanwhile(loss.backward)
    mhex.explain(model, x, "gradcam", score)
    thread.join(LATE)
    for parameter, gradient in zip(model.parameters(), wanted, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)
        assert parameter._backward_hooks is None


def _step(model: Net) -> None:
    with torch.no_grad():
        model.fc.weight.mul_(2.0)


@pytest.mark.parametrize("method", ["gradcam", "lrp", "occlusion", "input-x-gradient"])
@pytest.mark.parametrize("change", [_step, nn.Module.train, nn.Module.requires_grad_])
def test_changes_by_another_thread_are_refused(method: str, change: Callable[[nn.Module], Any], companion: Any) -> None:
    model, x = Net().eval(), torch.randn(2, 3, 8, 8)
    score, _ = meanwhile(lambda: change(model))
    with pytest.raises(CaptureError, match=r"Another thread changed the model.*copy\.deepcopy"):
        mhex.explain(model, x, method, score)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    mhex.explain(model.eval(), x, method)


def test_training_goes_on_as_if_nobody_explained() -> None:
    """The weights after some steps are the same, bit for bit; explanations meanwhile are refused or finite."""
    x, y = torch.randn(8, 3, 8, 8), torch.arange(8) % 3

    def train(model: nn.Module, steps: int = 60) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    model, calm = Net().train(), Net().train()
    model.drop.p = calm.drop.p = 0.0
    train(calm)
    thread = threading.Thread(target=train, args=(model,), daemon=True)
    thread.start()
    answers: list[str] = []
    while thread.is_alive() and len(answers) < 500:
        try:
            assert mhex.explain(model, x, "gradcam").scores.isfinite().all()
            answers.append("right")
        except CaptureError:
            answers.append("refused")
    thread.join(LATE)
    assert "right" in answers
    for (name, value), other in zip(model.state_dict().items(), calm.state_dict().values(), strict=True):
        assert torch.equal(value, other), name
    assert all(module.training for module in model.modules())


def test_threads_that_would_wait_for_each_other_are_refused() -> None:
    first, second = Net(), Net()
    entered = threading.Event()
    leave = threading.Event()

    def hold() -> None:
        with turn(frozenset([id(second)])):
            entered.set()
            leave.wait(LATE)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    entered.wait(LATE)
    with (
        turn(frozenset([id(first)])),
        pytest.raises(CaptureError, match="while this thread explains another"),
        turn(frozenset([id(second)])),
    ):
        pass
    leave.set()
    thread.join(LATE)
    with turn(frozenset([id(second)])):
        pass


class Asking(Net):
    """A network that explains itself."""

    def why(self, x: Tensor) -> Tensor:
        return mhex.explain(self, x, "gradcam", 1).scores


def test_threads_explain_through_a_method_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_PATIENCE", 2.0)
    model, x = Asking().eval(), torch.rand(2, 3, 8, 8)
    wanted = model.why(x)
    with ThreadPoolExecutor(3) as pool:
        for scores in pool.map(model.why, [x] * 9):
            assert torch.equal(scores, wanted)


def test_a_backward_pass_of_another_model_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_PATIENCE", 0.2)
    inside, over = threading.Event(), threading.Event()
    weight = torch.ones(3, requires_grad=True)

    def hold(gradient: Tensor) -> None:
        inside.set()
        over.wait(LATE)

    weight.register_hook(hold)
    thread = threading.Thread(target=lambda: (weight * 2).sum().backward())
    thread.start()
    try:
        assert inside.wait(LATE)
        assert mhex.explain(Net().eval(), torch.rand(1, 3, 8, 8), "gradcam", 1).scores.shape[0] == 1
    finally:
        over.set()
        thread.join(LATE)


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("part", ["", "norm", "forward"])
def test_a_thread_that_begins_late_waits(part: str) -> None:
    """It would train in evaluation mode, without gradients of the parameters."""
    model, calm, x = Net().train(), Net().train(), torch.randn(4, 3, 8, 8)
    model.drop.p = calm.drop.p = 0.0
    finished = threading.Event()

    def train(network: Net) -> None:
        run = network.forward if part == "forward" else network
        (network.norm(torch.tile(x, (1, 2, 1, 1))[:, :4]) if part == "norm" else run(x)).square().sum().backward()
        finished.set()

    train(calm)
    finished.clear()
    score, thread = meanwhile(lambda: train(model))

    def watch(logits: Tensor) -> Tensor:
        value = score(logits)
        assert not finished.is_set(), "it did not wait"
        return value

    mhex.explain(model, x, "gradcam", watch)
    thread.join(LATE)
    assert finished.is_set()
    assert threading.getprofile() is None
    for parameter, wanted in zip(model.parameters(), calm.parameters(), strict=True):
        assert (parameter.grad is None) == (wanted.grad is None)
        assert wanted.grad is None or torch.equal(parameter.grad, wanted.grad)
    assert torch.equal(model.norm.running_mean, calm.norm.running_mean)


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("change", [_step, nn.Module.train, nn.Module.requires_grad_])
def test_changes_by_a_late_thread_are_refused(change: Callable[[nn.Module], Any]) -> None:
    model = Net().eval()
    score, _ = meanwhile(lambda: change(model))
    with pytest.raises(CaptureError, match=r"Another thread changed the model.*copy\.deepcopy"):
        mhex.explain(model, torch.randn(2, 3, 8, 8), "gradcam", score)


class Branching(Net):
    """A network that hands a part of its work to a thread of its own."""

    def forward(self, x: Tensor) -> Tensor:
        with ThreadPoolExecutor(1) as pool:
            means = pool.submit(lambda: self.norm(x[:, :1].expand(-1, 4, -1, -1)).mean((2, 3))).result(LATE)
        return super().forward(x) + means[:, :3].detach()


@pytest.mark.parametrize("fixture", ["_alone", "companion"])
def test_threads_of_the_model_itself_do_not_wait(fixture: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(fixture)
    model, x = Branching().eval(), torch.randn(2, 3, 8, 8)
    wanted = model(x)
    assert torch.equal(mhex.explain(model, x, "gradcam", 0).logits, wanted)
