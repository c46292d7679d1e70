"""What each method costs, as a ratio to the model's own passes in the same run.

F is a plain forward pass, F + B a forward pass and the gradient of a score with respect to the input, weights frozen;
both are timed next to every method, on the same batch, and the median of the ratios is printed beside the budget.
Captum and pytorch-grad-cam are timed where they do the same work. Heads are measured twice: the model that carries them
against the plain one, and their maps against the model that carries them.

    python benchmarks/speed.py [--device cuda] [--batch 8] [--repeats 7] [--only heads] [--strict]
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import timm
import torch
from rich.console import Console
from torch import Tensor, nn

import mhex
from mhex.methods import all_methods
from yardsticks import Bench, Job, Row


def vit(batch: int, device: str, name: str = "vit_small_patch16_224", size: int = 224) -> list[Bench]:
    """A Vision Transformer: every method that serves it and has a budget, and some for ten classes at once."""
    model = timm.create_model(name, num_classes=1000).to(device)
    bench = Bench(f"{name}, batch {batch}", model, torch.randn(batch, 3, size, size, device=device))
    for method in all_methods().values():
        # Those of many passes, or for ReLU networks alone, are measured on the ResNet.
        if method.budget is None or method.budget[1] == "passes" or method.name == "guided-backprop":
            continue
        if "image" in method.modalities and "heads" not in method.needs.keep:
            # Feature maps of a ViT lie inside its last block, so the CAM methods are last-block methods there.
            budget = (1.35, "F") if "features" in method.needs.keep else None
            bench.add(method.name, input_peers(bench) if method.name == "input-x-gradient" else {}, budget=budget)
    bench.add("lrp", budget=(4.0, "F+B"), rule="alphabeta")
    bench.add("lrp", budget=(4.0, "F+B"), rule="alphabeta", alpha=2.0)
    bench.add("lrp", rule="gamma", budget=(4.0, "F+B"))
    bench.add("attnlrp", gamma_linear=0, gamma_conv=0, attention="shared")
    bench.add("cdam", closed_form=True)
    bench.add("gradtoken", budget=(1.35, "F"), aggregation="none")
    for name in ("gae", "attcat", "agcam", "tokentm", "cdam", "gradtoken"):
        bench.add(name, classes=10)
    return [bench]


def resnet(batch: int, device: str) -> list[Bench]:
    """ResNet-18 at 224 px: the CAM methods beside captum and pytorch-grad-cam; at 64 px, those of many passes."""
    model = timm.create_model("resnet18", num_classes=1000).to(device)
    bench = Bench(f"resnet18, 224 px, batch {batch}", model, torch.randn(batch, 3, 224, 224, device=device))
    bench.add("gradcam", cam_peers(bench, model.layer4[-1], "GradCAM"))
    bench.add("layercam", cam_peers(bench, model.layer4[-1], "LayerCAM"))
    bench.add("input-x-gradient", input_peers(bench))
    bench.add("gradcam++", cam_peers(bench, model.layer4[-1], "GradCAMPlusPlus"))
    bench.add("eigencam", cam_peers(bench, model.layer4[-1], "EigenCAM"))
    bench.add("guided-backprop", _captum(bench, "GuidedBackprop", {}))
    bench.add("lrp")
    bench.add("lrp", budget=(4.0, "F+B"), rule="alphabeta")
    bench.add("abslrp")
    bench.add("gradcam", classes=10)
    bench.add("scorecam", max_channels=4)
    bench.add("occlusion", window=112)
    bench.add("rise", n=4)
    small = Bench("resnet18, 64 px, batch 2", model, torch.randn(2, 3, 64, 64, device=device))
    small.add("scorecam", cam_peers(small, model.layer1[-1], "ScoreCAM"), layer="layer1")
    small.add("occlusion", _captum(small, "Occlusion", _OCCLUSION), window=16, fill="zero")
    small.add("rise", n=50)
    small.add("smoothgrad", _captum(small, "NoiseTunnel", {"nt_type": "smoothgrad", "nt_samples": 25}), n=25)
    small.add(
        "integrated-gradients",
        _captum(small, "IntegratedGradients", {"n_steps": 20, "return_convergence_delta": True}),
        steps=20,
    )
    return [bench, small, *_vgg(device)]


def _vgg(device: str) -> list[Bench]:
    """VGG-11, whose layers captum has rules for; without torchvision there is none."""
    if find_spec("torchvision") is None:
        return []
    from torchvision.models import vgg11

    model = vgg11(num_classes=1000).to(device)
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # captum refuses others
    bench = Bench("vgg11, 224 px, batch 2", model, torch.randn(2, 3, 224, 224, device=device))
    bench.add("lrp", _captum(bench, "LRP", {}), input_rule="same")
    return [bench]


def heads(batch: int, device: str) -> list[Bench]:
    """ResNet-18 at 224 px with heads on all 8 units: what they cost a forward pass, and what their maps cost."""
    torch.manual_seed(0)
    plain = timm.create_model("resnet18", num_classes=1000).to(device)
    model = copy.deepcopy(plain)
    for parameter in mhex.attach(model, 1000, preset="paper").head_parameters():
        nn.init.normal_(parameter, std=0.02)
    x = torch.randn(batch, 3, 224, 224, device=device)
    cost = Bench(f"resnet18, 224 px, batch {batch}, plain", plain, x)
    maps = Bench(f"resnet18, 224 px, batch {batch}, with 8 heads", model, x)
    cost.rows.append(Row("forward pass with 8 heads", maps.forward, (1.10, "F")))
    maps.add("mhex")
    maps.rows.append(Row("mhex, 10 classes", partial(mhex.explain, model, x, "mhex", list(range(10))), None))
    return [cost, maps]


_OCCLUSION = {"sliding_window_shapes": (3, 16, 16), "strides": (3, 16, 16), "perturbations_per_eval": 16}


def _captum(bench: Bench, kind: str, options: dict[str, Any]) -> dict[str, Job]:
    """A method of captum on the same work; a noise tunnel is one around plain gradients."""
    if find_spec("captum") is None:
        return {}
    from captum import attr

    theirs = getattr(attr, kind)(attr.Saliency(bench.model) if kind == "NoiseTunnel" else bench.model)
    return {"captum": lambda: theirs.attribute(_leaf(bench.x), target=0, **options)}


def input_peers(bench: Bench) -> dict[str, Job]:
    """Gradient times input by captum."""
    if find_spec("captum") is None:
        return {}
    from captum.attr import InputXGradient

    captum = InputXGradient(bench.model)
    return {"captum": lambda: captum.attribute(_leaf(bench.x), target=0)}


def cam_peers(bench: Bench, layer: nn.Module, kind: str) -> dict[str, Job]:
    """A CAM method by captum, which has Grad-CAM alone, and by pytorch-grad-cam, whose name of it is `kind`."""
    peers: dict[str, Job] = {}
    if find_spec("captum") is not None and kind == "GradCAM":
        from captum.attr import LayerGradCam

        captum = LayerGradCam(bench.model, layer)
        peers["captum"] = lambda: captum.attribute(_leaf(bench.x), target=0)
    if find_spec("pytorch_grad_cam") is not None:
        import pytorch_grad_cam
        from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

        targets = [ClassifierOutputTarget(0)] * len(bench.x)

        def grad_cam() -> object:
            bench.model.requires_grad_(True)  # it needs a graph from the first layer on
            with getattr(pytorch_grad_cam, kind)(model=bench.model, target_layers=[layer]) as cam:
                result = cam(input_tensor=bench.x, targets=targets)
            bench.model.requires_grad_(False)
            return result

        peers["grad-cam"] = grad_cam
    return peers


def _leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", choices=("vit", "resnet", "heads"), help="measure this part alone")
    parser.add_argument("--match", default="", help="measure only rows whose names contain this")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a row is over its budget")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    console = Console(width=150)
    total = 0
    kinds: dict[str, Callable[..., list[Bench]]] = {"vit": vit, "resnet": resnet, "heads": heads}
    chosen = [arguments.only] if arguments.only else list(kinds)
    builds = [partial(kinds[name], arguments.batch) for name in chosen]
    if arguments.device != "cpu" and "vit" in chosen:
        builds.append(partial(vit, 4, name="vit_base_patch16_384", size=384))
    benches = (bench for build in builds for bench in build(device=arguments.device))
    for bench in benches:
        bench.rows = [row for row in bench.rows if arguments.match in row.name]
        if not bench.rows:
            continue
        bench.measure(arguments.repeats)
        table, over = bench.table()
        console.print(table)
        total += over
    console.print(f"{total} of the rows are over their budget." if total else "Every row is within its budget.")
    return int(bool(total) and arguments.strict)


if __name__ == "__main__":
    raise SystemExit(main())
