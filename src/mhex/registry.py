"""The list of methods. One decorator adds a method; menus, docs, benchmarks and contract tests read it from here."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Number, Real
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from torch import Tensor

from mhex._refusal import refusal
from mhex.capture import Anatomy, Modality, Needs
from mhex.errors import ArgumentError, ArgumentTypeError, UnsupportedModelError, unknown_name
from mhex.relevance import Composite

_LARGEST = 1e30  # of a number with a fraction: float32 holds it, and a few of its multiples
TargetKind = Literal["score", "scores", "class"]
Adapt = Callable[[Mapping[str, Any], Anatomy], Needs]
Rules = Callable[[Mapping[str, Any], Anatomy], Composite]
MethodFunction = TypeVar("MethodFunction", bound=Callable[..., Tensor])


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

    Attributes:
        name: What users type.
        function: The formula.
        title: One line on the idea.
        paper: Reference.
        modalities: What it is defined for.
        needs: What it reads of a forward pass.
        signed: True if scores below zero mean evidence against the target.
        class_specific: True if the map depends on the target.
        passes: Cost in words of F (forward), B (backward) and t (forward and backward of the last block).
        use: When to use it, in a sentence or two for its page.
        avoid: When not to.
        max_tokens: The longest sequence it can be used on; None for any.
        budget: The most it may cost in `make speed`, as a factor and `"F"` or `"F+B"`.
        target: Whether it explains any `"score"`, all `"scores"` at once, or the number of a `"class"` only.
        adapt: From options and the model's anatomy to what it reads then; None if that is always the same.
        relu: True if it is defined for ReLU networks alone.
        rules: From options and the model's anatomy to the relevance rules of its pass; None for plain gradients.
        quick: By modality, options of fewer passes for a first look; empty for a method that is quick anyway.
    """

    name: str
    function: Callable[..., Tensor]
    title: str
    paper: str
    modalities: tuple[Modality, ...]
    needs: Needs
    signed: bool
    class_specific: bool
    passes: str
    use: str
    avoid: str
    max_tokens: int | None = None
    budget: tuple[float, str] | None = None
    target: TargetKind = "score"
    adapt: Adapt | None = None
    relu: bool = False
    rules: Rules | None = None
    quick: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def needs_with(self, options: Mapping[str, Any], anatomy: Anatomy) -> Needs:
        """What it reads of a forward pass of this model with these options."""
        return self.needs if self.adapt is None else self.adapt(options, anatomy)

    @property
    def takes_gradients(self) -> bool:
        """Whether it goes back through the model, in the observed pass or in later ones."""
        return re.search(r"\b(B|t|gradient)\b", self.passes) is not None

    @property
    def options(self) -> Mapping[str, Any]:
        """Options and their defaults. `layer` is common to methods that read feature maps."""
        parameters = inspect.signature(self.function).parameters.values()
        own = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
        return {**own, "layer": None} if "features" in self.needs.keep else own

    @property
    def option_help(self) -> Mapping[str, str]:
        """What each option means, from the `Args` part of the function's doc-string."""
        _, _, described = (inspect.getdoc(self.function) or "").partition("Args:\n")
        entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", described, flags=re.MULTILINE)
        texts = {name: " ".join(text.split()) for name, text in entries}
        texts["layer"] = "Submodule whose output is read, by name or itself; by default the last feature maps."
        return {name: texts.get(name, "") for name in self.options}

    def check_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """All options with their values; an unknown one is refused with the list of those that exist."""
        for name in options:
            if name not in self.options:
                known = ", ".join(f"{k}={v!r}" for k, v in self.options.items()) or "none"
                raise ArgumentError(f"Method {self.name!r} has no option {name!r}. Its options: {known}.")
            if isinstance(self.options[name], bool) and not isinstance(options[name], bool):
                raise ArgumentTypeError(f"Expected True or False for the option {name!r}, but got {options[name]!r}.")
        return {**self.options, **{name: self._plain(name, value) for name, value in options.items()}}

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
        if isinstance(value, Integral) and int in kinds:
            return int(value)
        number: Any = value
        if not isinstance(value, Real) or float not in kinds:
            return value
        if not abs(number) <= _LARGEST:
            raise ArgumentError(f"Expected {name} to be a number up to {_LARGEST:g}, but got {value!r}.")
        return float(number)

    def refusal(self, anatomy: Anatomy, tokens: int | None = None, needs: Needs | None = None) -> str:
        """Why this method cannot serve the model, on inputs of so many tokens; empty if it can.

        Args:
            anatomy: Of the model.
            tokens: How many there will be, if known.
            needs: What it reads with the options given; with the default ones if None.
        """
        return refusal(self, anatomy, tokens, needs or self.needs)

    def check_serves(
        self, anatomy: Anatomy, tokens: int | None = None, needs: Needs | None = None, classes: bool = True
    ) -> None:
        """Refuse a model that the method cannot serve, naming methods that can.

        Args:
            anatomy: Of the model.
            tokens: As for `refusal`.
            needs: As for `refusal`.
            classes: Whether the target is a class; if not, methods that explain nothing else are not named.
        """
        if reason := self.refusal(anatomy, tokens, needs):
            if anatomy.no_scores and classes:  # no other method can either
                raise UnsupportedModelError(anatomy.no_scores)
            sure, unsure = _serving(anatomy, tokens, classes)
            others = (
                f" Those that can if they have rules for all its operations: {', '.join(unsure)}." if unsure else ""
            )
            raise UnsupportedModelError(
                f"Method {self.name!r} cannot explain this {anatomy.family}: {reason}. "
                f"Methods that can: {', '.join(sure) or 'none'}.{others}",
                reason,
            )


def _serving(anatomy: Anatomy, tokens: int | None, classes: bool) -> tuple[list[str], list[str]]:
    """Names of the methods that serve a model, and of those that may: if it has no operation without a rule."""
    able = [
        method
        for method in all_methods().values()
        if not method.refusal(anatomy, tokens, method.needs_with(method.options, anatomy))
        and (classes or method.target != "class")
    ]
    return [m.name for m in able if m.rules is None], [m.name for m in able if m.rules is not None]


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


_METHODS: dict[str, Method] = {}


def register(
    name: str,
    *,
    title: str,
    paper: str,
    modalities: tuple[Modality, ...],
    needs: Needs,
    signed: bool,
    class_specific: bool,
    passes: str,
    use: str,
    avoid: str,
    max_tokens: int | None = None,
    budget: tuple[float, str] | None = None,
    target: TargetKind = "score",
    adapt: Adapt | None = None,
    relu: bool = False,
    rules: Rules | None = None,
    quick: Mapping[str, Mapping[str, Any]] | None = None,
) -> Callable[[MethodFunction], MethodFunction]:
    """Register the decorated function as method `name`; see `Method` for the meaning of the arguments."""

    def decorate(function: MethodFunction) -> MethodFunction:
        if name in _METHODS:
            raise ArgumentError(f"A method named {name!r} is registered already; choose another name.")
        _METHODS[name] = Method(
            name=name,
            function=function,
            title=title,
            paper=paper,
            modalities=modalities,
            needs=needs,
            signed=signed,
            class_specific=class_specific,
            passes=passes,
            use=use,
            avoid=avoid,
            max_tokens=max_tokens,
            budget=budget,
            target=target,
            adapt=adapt,
            relu=relu,
            rules=rules,
            quick=quick or {},
        )
        return function

    return decorate


def all_methods() -> dict[str, Method]:
    """Every registered method by name; the files of `mhex.methods` are imported on first use."""
    import mhex.methods

    for module in pkgutil.iter_modules(mhex.methods.__path__):
        if not module.name.startswith("_"):  # underscore files are machinery
            importlib.import_module(f"mhex.methods.{module.name}")
    return dict(sorted(_METHODS.items()))


def get_method(name: str) -> Method:
    """The method called `name`."""
    methods = all_methods()
    if not isinstance(name, str):
        raise ArgumentTypeError(f"Expected the name of one method, but got {type(name).__name__}.")
    if name == "auto":
        raise ArgumentError("Expected a method by its name: 'auto' is for mhex.explain, which chooses one for a model.")
    if name not in methods:
        raise unknown_name("method", str(name), methods)
    return methods[name]


def list_methods() -> list[dict[str, Any]]:
    """One row per method: name, title, paper, modality, needs, signed, class_specific, passes, options."""
    return [
        {
            "name": m.name,
            "title": m.title,
            "paper": m.paper,
            "modality": ", ".join(m.modalities),
            "needs": str(m.needs),
            "signed": m.signed,
            "class_specific": m.class_specific,
            "passes": m.passes,
            "options": dict(m.options),
        }
        for m in all_methods().values()
    ]
