"""A folded model leaves Python: torch.export, torch.jit.trace, ONNX."""

import pytest
import torch

from support.hosts_with_heads import called, close, inputs, part, run

CASES = [("tv_resnet", "last_head"), ("hf_bert", "sum"), ("timm_vit", "classifier")]
MORE = [("timm_convnext", "sum"), ("hf_vit", "last_head"), ("hf_bert", "classifier"), ("timm_resnet", "last_head")]


def arguments(x):
    """Positional and named arguments, and the batch dimension of each."""
    batch = torch.export.Dim("batch", min=2, max=64)
    return ((x,), {}, ({0: batch},)) if isinstance(x, torch.Tensor) else ((), x, {name: {0: batch} for name in x})


def check(name, source):
    scaffold, x = called(name), inputs(name)
    scaffold.predict_from = source
    args, kwargs, batch = arguments(x)
    program = torch.export.export(scaffold.fold(), args, kwargs, dynamic_shapes=batch)
    for rows in (slice(0, 4), slice(1, 4)):
        assert close(run(program.module(), part(x, rows)), scaffold.predict(part(x, rows)))
    assert all(str(n.target).startswith(("aten", "<built-in")) for n in program.graph.nodes if n.op == "call_function")


@pytest.mark.parametrize(("name", "source"), CASES[:2])
def test_export_with_any_batch(name, source):
    check(name, source)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "source"), [*CASES[2:], *MORE])
def test_export_of_more_hosts_with_any_batch(name, source):
    check(name, source)


def test_a_folded_model_can_be_traced():
    scaffold, x = called("tv_resnet"), inputs("tv_resnet")
    scaffold.predict_from = "last_head"
    traced = torch.jit.trace(scaffold.fold(), x)
    assert close(run(traced, part(x, slice(0, 3))), scaffold.predict(part(x, slice(0, 3))))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "source"), [*CASES, ("hf_bert", "last_head")])
def test_a_folded_model_can_be_written_as_onnx(name, source, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    scaffold, x = called(name), inputs(name)
    scaffold.predict_from = source
    args, kwargs, batch = arguments(x)
    program = torch.onnx.export(scaffold.fold(), args, kwargs=kwargs, dynamo=True, dynamic_shapes=batch, verbose=False)
    program.save(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    if source == "last_head":  # nothing behind the last head is in the file
        assert not [key for key in program.model.graph.initializers if key.startswith(("host.fc", "host.classifier"))]
    names = [given.name for given in session.get_inputs()]
    for rows in (slice(0, 4), slice(0, 3)):
        some = part(x, rows)
        values = [some] if isinstance(some, torch.Tensor) else list(some.values())
        scores = session.run(None, {key: v.numpy() for key, v in zip(names, values, strict=True)})[0]
        assert close(torch.from_numpy(scores), scaffold.predict(some), 2e-5)
