"""Settings common to all tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
import torch

# Their asserts count under `python -O` too, as those of tests do.
pytest.register_assert_rewrite("support", "cli_helpers", "train_helpers")
# The models are tiny: threads cost more than they give, and several test processes share the machine.
torch.set_num_threads(1)
# shap compiles its loops when it is first used, which takes longer than all its tests.
os.environ.setdefault("NUMBA_DISABLE_JIT", "1")
# What is imported and collected stays until the end: the garbage collector need not walk it again and again.
gc.disable()


@pytest.fixture(autouse=True)
def _known_random_state() -> Iterator[None]:
    """Every test starts from the same global generator, so none depends on the order of the others."""
    state = torch.get_rng_state()
    # That of the processor alone: without a device, `torch.manual_seed` writes down its call stack several times.
    torch.default_generator.manual_seed(1234)
    yield
    torch.set_rng_state(state)


@pytest.fixture(scope="session", autouse=True)
def _no_models_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What somebody built on this machine decides nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MHEX_MODELS", str(tmp_path_factory.getbasetemp() / "no-models"))
        yield


def pytest_collection_finish() -> None:
    """Set everything that exists by now aside from the garbage collector, and let it run."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Libraries that count what is left at the end find it as usual."""
    gc.unfreeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the slow tests out unless a marker expression or a test id asks for them."""
    if config.option.markexpr or any("::" in argument for argument in config.args):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in set(slow)]
