"""Registries of methods and metrics. One decorator adds an entry; menus, docs, benchmarks and tests read it from here.

A module registers what it defines when it is imported. `mhex.methods` and `mhex.metrics` import all their modules, so
that what they list is complete.
"""

import functools
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral, Number, Real
from types import NoneType, UnionType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from mhex._settings import check_choice, check_count, check_that
from mhex.capture import Anatomy, Modality, Needs
from mhex.capture.operations import Rules as RelevanceRules
from mhex.errors import ArgumentError, ArgumentTypeError, UnsupportedModelError, unknown_name

# What options mean that several methods have in common.
_COMMON_OPTIONS = {
    "layer": "Submodule whose output is read, by name or itself; by default the last feature maps.",
    "batch_size": "The most samples in one pass; None for what is good for the device. It does not change the result.",
}
_LARGEST = 1e30  # of a number with a fraction: float32 holds it, and a few of its multiples
TargetKind = Literal["score", "scores", "class"]
Adapt = Callable[[Mapping[str, Any], Anatomy], Needs]
Rules = Callable[[Mapping[str, Any], Anatomy], RelevanceRules]
Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Entry = TypeVar("Entry")
Facts = ParamSpec("Facts")


class Registry(Generic[Entry]):
    """Entries by name of one kind, such as `"method"`, as messages call it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.entries: dict[str, Entry] = {}

    def add(self, name: str, entry: Entry) -> None:
        """Register an entry under a name that is free."""
        if name in self.entries:
            raise ArgumentError(f"A {self.kind} named {name!r} is registered already; choose another name.")
        self.entries[name] = entry

    def get(self, name: str) -> Entry:
        """The entry called `name`."""
        if not isinstance(name, str):
            raise ArgumentTypeError(f"Expected the name of one {self.kind}, but got {type(name).__name__}.")
        if name not in self.entries:
            raise unknown_name(self.kind, name, self.sorted())
        return self.entries[name]

    def sorted(self) -> dict[str, Entry]:
        """All entries, in the order of their names."""
        return dict(sorted(self.entries.items()))

    def decorator(
        self, build: Callable[Concatenate[str, Any, Facts], Entry]
    ) -> Callable[Concatenate[str, Facts], Callable[[Decorated], Decorated]]:
        """A decorator that registers functions or classes; `build` makes entries of a name, them and its arguments."""

        def register(name: str, /, *args: Facts.args, **facts: Facts.kwargs) -> Callable[[Decorated], Decorated]:
            def decorate(decorated: Decorated) -> Decorated:
                self.add(name, build(name, decorated, *args, **facts))
                return decorated

            return decorate

        return register


@functools.cache
def import_modules(package: str) -> None:
    """Import the modules of a package, once, so that they register what they define; underscore files are machinery."""
    for module in pkgutil.iter_modules(sys.modules[package].__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{package}.{module.name}")


@dataclass(frozen=True)
class Method:
    """A registered explanation method.

    Its function is called as `function(trace, y, **options)` once per target, all targets sharing one forward pass;
    `y` (B,) is the target's score in the autograd graph. Class-agnostic methods are called once, as
    `function(trace, **options)`. It returns token scores (B, N) over all tokens, or a map (B, h, w). Prefix, special
    and padding tokens are taken out afterwards, by `Trace.place`. A method with `target="class"` is called once for
    all targets, as `function(trace, index, **options)` with class numbers (B, K); it returns (B, K, N) or
    (B, K, h, w). So does one with `target="scores"`, which runs the model again and is given a function from the
    `Outcome` of a pass to the scores of all targets, (B, K).
    """

    name: str  # what users type
    function: Callable[..., Tensor]  # the formula
    title: str  # one line on the idea
    paper: str  # reference
    signed: bool  # scores below zero mean evidence against the target
    passes: str  # cost in words of F (forward), B (backward) and t (forward and backward of the last block)
    use: str  # when to use it, in a sentence or two for its page
    avoid: str  # when not to
    needs: Needs = field(default_factory=Needs)  # what it reads of a forward pass beside the model's scores
    modalities: tuple[Modality, ...] = ("image", "text")  # what it is defined for
    class_specific: bool = True  # the map depends on the target
    max_tokens: int | None = None  # the longest sequence it can be used on; None for any
    budget: tuple[float, str] | None = None  # the most it may cost in `make speed`, as a factor and "F" or "F+B"
    target: TargetKind = "score"  # it explains any score, all scores at once, or the number of a class only
    adapt: Adapt | None = None  # from options and the model's anatomy to what it reads then; None if always the same
    relu: bool = False  # it is defined for ReLU networks alone
    rules: Rules | None = None  # from options and anatomy to the relevance rules of its pass; None for plain gradients
    # By modality, options of fewer passes for a first look; empty for a method that is quick anyway.
    quick: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def needs_with(self, options: Mapping[str, Any], anatomy: Anatomy) -> Needs:
        """What it reads of a forward pass of this model with these options."""
        return self.needs if self.adapt is None else self.adapt(options, anatomy)

    @property
    def takes_gradients(self) -> bool:
        """Whether it goes back through the model, in the observed pass or in later ones."""
        return re.search(r"\b(B|t|gradient)\b", self.passes) is not None

    @functools.cached_property
    def options(self) -> Mapping[str, Any]:
        """Options and their defaults. Methods that read feature maps have the option `layer` in common."""
        parameters = inspect.signature(self.function).parameters.values()
        options = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
        return {**options, "layer": None} if "features" in self.needs.keep else options

    @property
    def option_help(self) -> Mapping[str, str]:
        """What each option means, from the `Args` part of the function's doc-string."""
        _, _, described = (inspect.getdoc(self.function) or "").partition("Args:\n")
        entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", described, flags=re.MULTILINE)
        texts = {name: " ".join(text.split()) for name, text in entries}
        return {name: texts.get(name, _COMMON_OPTIONS.get(name, "")) for name in self.options}

    def check_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """All options with their values; an unknown one is refused with the list of those that exist."""
        for name in options:
            if name not in self.options:
                listed = ", ".join(f"{k}={v!r}" for k, v in self.options.items()) or "none"
                raise ArgumentError(f"Method {self.name!r} has no option {name!r}. Its options: {listed}.")
            if isinstance(self.options[name], bool) and not isinstance(options[name], bool):
                raise ArgumentTypeError(f"Expected True or False for the option {name!r}, but got {options[name]!r}.")
        checked = {**self.options, **{name: self._plain(name, value) for name, value in options.items()}}
        check_count("batch_size", checked.get("batch_size"), or_none=True)
        return checked

    def _plain(self, name: str, value: Any) -> Any:
        """The value of an option; numbers, numpy's too, become the kind that it is annotated with."""
        kinds = _plain_kinds(self.function).get(name)
        if kinds is None or (isinstance(value, bool) and bool in kinds):
            return value
        if isinstance(value, bool):
            raise ArgumentError(f"Expected {name} to be a number, a text or None, but got {value}.")
        if not isinstance(value, (str, Number, NoneType)):
            kind = type(value).__name__
            raise ArgumentTypeError(f"Expected {name} to be a number, a text or None, but got {kind}.")
        if all(kind is NoneType or get_origin(kind) is Literal for kind in kinds):
            choices = [choice for kind in kinds for choice in get_args(kind)]
            check_choice(name, value, [None, *choices] if NoneType in kinds else choices)
        if isinstance(value, Integral) and int in kinds:
            return int(value)
        if not isinstance(value, Real) or float not in kinds:
            return value
        number: Any = value
        check_that(abs(number) <= _LARGEST, f"{name} to be a number up to {_LARGEST:g}", repr(value))
        return float(number)

    def refusal(self, anatomy: Anatomy, tokens: int | None = None, needs: Needs | None = None) -> str:
        """Why this method cannot serve a model, in words that follow the method's name; empty if it can.

        `tokens` is how many the inputs will have, if known, and `needs` what the method reads with the options given;
        None for the default ones.
        """
        usual, keep = needs is None, self.needs.keep
        needs = self.needs_with(self.options, anatomy) if needs is None else needs
        if anatomy.modality not in self.modalities:
            return f"it is not defined for {anatomy.modality} models"
        if "heads" in keep and anatomy.heads > 1:
            return f"it reads the heads of one model, and {anatomy.heads} parts of this one carry some"
        if "heads" in keep and not anatomy.heads:
            attached = "mhex.attach(model, num_classes) attaches some, to be trained"
            return f"it reads heads, and the model has none: {attached}"
        if anatomy.opaque and (part := self._part_inside(needs, anatomy)):
            return f"it must see {part}, and {anatomy.opaque} does not show its inside"
        if self.takes_gradients and anatomy.cuts_gradient:
            return f"it takes gradients, and the {anatomy.cuts_gradient} of the model passes none on"
        if self.relu and anatomy.activation:
            return f"it is defined for ReLU networks, and this one uses {anatomy.activation}"
        if self.needs.blocks and not anatomy.blocks:
            part = "attention" if "attention" in keep else "the blocks of a Transformer"
            return f"it reads {part}, and {anatomy.no_attention or 'the model has none'}"
        if part := _hidden_part(needs, anatomy):
            return f"it reads {part} of every block, which this {anatomy.family} does not show"
        if "features" in keep and anatomy.features is None:
            return "it reads feature maps, and the model shows none; name a submodule with layer="
        if "input" in keep and anatomy.modality == "text" and anatomy.embedding is None:
            return "it reads word embeddings (batch, tokens, width), and the model shows none"
        if usual and anatomy.no_mask and "fill" in self.options:
            return "it hides words, and it is not known by which token: give tokenizer=, or fill=, the id of one"
        if self.max_tokens is not None and tokens is not None and tokens > self.max_tokens:
            return f"it serves at most {self.max_tokens} tokens, and there are {tokens}"
        return ""

    def _part_inside(self, needs: Needs, anatomy: Anatomy) -> str:
        """What it must see of the inside of parts that show none; empty if nothing."""
        if self.rules is not None:
            return "every operation"
        if needs.blocks:
            return "the blocks of a Transformer"
        hidden = anatomy.features is None or isinstance(anatomy.features.module, torch.jit.ScriptModule)
        return "feature maps" if "features" in needs.keep and hidden else ""

    def check_serves(
        self, anatomy: Anatomy, tokens: int | None = None, needs: Needs | None = None, classes: bool = True
    ) -> None:
        """Refuse a model that the method cannot serve, naming methods that can; arguments as for `refusal`."""
        # Where the target is no class, methods that explain nothing else are not named.
        if reason := self.refusal(anatomy, tokens, needs):
            if anatomy.no_scores and classes:  # nor can any other method
                raise UnsupportedModelError(anatomy.no_scores)
            able: dict[str | None, list[str]] = {"": [], None: []}  # by condition
            for method in METHODS.sorted().values():
                if classes or method.target != "class":
                    able.setdefault(method.condition(anatomy, tokens), []).append(method.name)
            words = f"Method {self.name!r} cannot explain this {anatomy.family}: {reason}. "
            words += f"Methods that can: {', '.join(able.pop('')) or 'none'}."
            del able[None]
            words += "".join(f" Those that can if {why}: {', '.join(names)}." for why, names in able.items())
            raise UnsupportedModelError(words, reason)

    def condition(self, anatomy: Anatomy, tokens: int | None = None) -> str | None:
        """Under which condition, which shows in a pass alone, it can serve a model; empty if it can, None if not."""
        if self.refusal(anatomy, tokens):
            lacks_mask = anatomy.no_mask and not self.refusal(replace(anatomy, no_mask=False), tokens)
            return "tokenizer=, or fill=, says by which token they hide words" if lacks_mask else None
        if self.rules is not None:
            gradients = ", and gradients pass through these" if anatomy.own_code else ""
            return f"they have rules for all its operations{gradients}"
        return "gradients pass through all its operations" if self.takes_gradients and anatomy.own_code else ""


def _hidden_part(needs: Needs, anatomy: Anatomy) -> str:
    """The first thing that a method needs of every block and the model does not show; empty if there is none."""
    if "tokens" in needs.keep and any(block.unseen_norm for block in anatomy.blocks):
        return "the normalised tokens that enter the attention"
    sites = [site for site in ("attention_output", "mlp_input", "mlp_output") if site in needs.keep]
    sites += ["value_projection", "output_projection"] if needs.projections else []
    hidden = (site for site in sites if any(getattr(block, site) is None for block in anatomy.blocks))
    return next((f"the {site.replace('_', ' ').replace('mlp', 'MLP')}" for site in hidden), "")


@functools.cache
def _plain_kinds(function: Callable[..., Tensor]) -> dict[str, tuple[Any, ...]]:
    """What options may be that are annotated as numbers, texts or None alone, and nothing like a table or a tensor."""
    try:
        hints = get_type_hints(function)
    except NameError:  # a method of the user's, with names that only its checker knows
        return {}
    plain = (int, float, str, bool, NoneType)
    kinds = {}
    for name, hint in hints.items():
        union = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if all(kind in plain or get_origin(kind) is Literal for kind in union):
            kinds[name] = union
    return kinds


METHODS: Registry[Method] = Registry("method")
register = METHODS.decorator(Method)  # registers the decorated function; the arguments are the fields of `Method`
