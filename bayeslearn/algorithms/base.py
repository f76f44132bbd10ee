"""The contract: an algorithm is a frozen dataclass of hyper-parameters with pure methods.

    init(key, target, params)            -> state          what the next step needs
    step(key, target, state, batch)      -> state, info    info: scalars for progress and plots
    approximation(target, state, draws)  -> family         the q it has learned, or the draws
    position(state)                      -> params         the draw of a sampler's step

These four are required (`position` of samplers only). `capabilities` says what the method needs
and can do, `info_fields` which scalars are reported where; the other methods of the class are
optional hooks with a default. Numbers are dynamic: another learning rate does not recompile. Sizes,
names and functions are static. Fields are declared with `hyper`, with their documentation and
their check.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import numpy as np
import optax

from bayeslearn.algorithms.optimizers import ScheduledRate, as_rate, scaled_updates
from bayeslearn.data.rows import Batch
from bayeslearn.errors import refuse
from bayeslearn.families.base import Family
from bayeslearn.families.streamed import draws_of
from bayeslearn.models.target import Target
from bayeslearn.tree import LARGE_NETWORK, Array, PyTree


def hyper(
    default: Any,
    doc: str,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    choices: Sequence[str] | None = None,
    optional: bool = False,
    real: bool = False,
    free: bool = False,
    schedule: bool = False,
    keyword: bool = False,
) -> Any:
    """A documented, checked hyper-parameter.

    Floats are dynamic; ints, strings, flags and `free` values (functions, mappings) are static.
    `optional` also allows None; `real` marks a number whose default is None as dynamic, not a
    count; `schedule` also allows a function of the step's number. A `keyword` has no position.
    """
    dynamic = isinstance(default, float) or real
    check = {
        "above": above,
        "least": least,
        "below": below,
        "most": most,
        "choices": choices,
        "optional": optional,
        "real": real,
        "free": free,
        "schedule": schedule,
    }
    return eqx.field(
        default=default,
        static=not dynamic,
        converter=freeze if free else as_rate if schedule else _plain_number,
        kw_only=keyword,
        metadata={"doc": doc, "check": check, "default": default},
    )


class Capabilities(NamedTuple):
    """What a method needs and can do; used in refusals, the common tests and tables."""

    is_sampler: bool = False
    needs_gradient: bool = True  # of the model, in its own steps
    needs_per_example: bool = False
    needs_gaussian_prior: bool = False
    needs_linear_model: bool = False  # linear in its weights, Gaussian noise
    takes_minibatches: bool = True
    independent_batches: bool = False  # of rows in memory: not without replacement in an epoch
    has_lower_bound: bool = True
    accepts_initial_gaussian: bool = False  # can start at a Gaussian instead of its warm start
    supports_multistart: bool = False  # its optimum depends on the start
    returns_last_state: bool = False  # where a run ends, not the best of its evaluations
    init_is_result: bool = False  # `init` does the whole work, from all rows at any size
    is_composite: bool = False  # made of runs of other methods; it has no step of its own


class InfoFields(NamedTuple):
    """Fields of a method's Info: shown while it runs, evaluated seldom, or counted."""

    progress: tuple[str, ...] = ()
    evaluation_only: tuple[str, ...] = ()  # each would need a pass over all weights per step
    small_only: tuple[str, ...] = ()  # the same, but cheap up to LARGE_NETWORK weights
    counts: tuple[str, ...] = ()  # summed, not averaged, over the steps of a thinned draw


class Algorithm(eqx.Module):
    """Base of all algorithms; subclasses are final."""

    name: ClassVar[str]  # on the command line and in `bl.ALGORITHMS`
    title: ClassVar[str]  # one line for tables
    capabilities: ClassVar[Capabilities] = Capabilities()
    info_fields: ClassVar[InfoFields] = InfoFields()
    auto_steps: ClassVar[int] = 5000  # num_steps="auto"; 1 for closed forms
    # Defaults by the network's size: (up to LARGE_NETWORK weights, above), for values not set
    sized_defaults: ClassVar[Mapping[str, tuple[Any, Any]]] = types.MappingProxyType({})

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        lines = [
            f"    {key}: {value.metadata['doc']} (default {value.metadata['default']!r})"
            for key, value in _declared(cls).items()
            if "doc" in value.metadata
        ]
        if lines and cls.__doc__:
            cls.__doc__ = cls.__doc__.rstrip() + "\n\n    Parameters:\n" + "\n".join(lines) + "\n"

    def __check_init__(self) -> None:
        for field in dataclasses.fields(self):
            if "check" in field.metadata:
                check_hyper(field.name, getattr(self, field.name), field.metadata)

    def for_network(self, num_weights: int) -> Self:
        """This algorithm with its defaults for a network of so many weights, where none is set."""
        at = int(num_weights > LARGE_NETWORK)
        pairs = self.sized_defaults.items()
        unset = {name: pair[at] for name, pair in pairs if is_unset(getattr(self, name))}
        new = {name: v(num_weights) if callable(v) else v for name, v in unset.items()}
        return dataclasses.replace(self, **new) if new else self

    def setting(self, name: str) -> Any:
        """A hyper-parameter; where none is set, the default for a small network."""
        value = getattr(self, name)
        return self.sized_defaults[name][0] if is_unset(value) else value

    # Required

    def init(self, key: Array, target: Target, params: PyTree) -> PyTree:
        """The first state, at `params`."""
        raise NotImplementedError

    def step(
        self, key: Array, target: Target, state: PyTree, batch: Batch | None
    ) -> tuple[PyTree, PyTree]:
        """The next state, and scalars about the step."""
        raise NotImplementedError

    def approximation(self, target: Target, state: PyTree, draws: PyTree | None = None) -> Family:
        """The q of the state; of a sampler, the draws."""
        raise NotImplementedError

    def position(self, state: PyTree) -> PyTree:
        """The draw of a sampler's state."""
        return state.position

    # The start

    def check(self, target: Target, params: PyTree) -> None:
        """Refuse a model that the method does not support; called by `fit` before any work."""

    def warm_start(self) -> Algorithm | None:
        """The algorithm whose result this one starts from; None to start from the network."""
        return None

    def init_from(self, key: Array, target: Target, q: Family) -> PyTree:
        """The first state at the warm start's result; by default at its mean."""
        return self.init(key, target, q.mean)

    # The schedule

    def training_target(self, target: Target, count: Array | None) -> Target:
        """The target of the step after `count` others, or (None) of the first state."""
        return target

    @property
    def kl_weight(self) -> Array | float:
        """The weight of the complexity cost at the end of a run; 1: Bayes' rule."""
        return getattr(self, "temperature", 1.0)

    @property
    def has_decaying_rate(self) -> bool:
        """Whether its step size decays to zero over a run of known length."""
        return False

    def with_run_length(self, num_steps: int) -> Self:
        """This algorithm for a run of so many steps."""
        return self

    @property
    def can_shorten_steps(self) -> bool:
        """Whether a run that diverges can continue with a smaller learning rate."""
        return any(field.name == "learning_rate" for field in dataclasses.fields(self))

    def with_shorter_steps(self, scale: float) -> Self:
        """This algorithm with its learning rate times `scale`, or the updates of its optimiser."""
        optimizer = getattr(self, "optimizer", None)
        if isinstance(optimizer, optax.GradientTransformation):
            new: Any = {"optimizer": scaled_updates(optimizer, scale)}
            return dataclasses.replace(self, **new)
        rate = self.learning_rate * scale  # type: ignore[attr-defined]
        return eqx.tree_at(lambda a: a.learning_rate, self, rate)

    def gradients_per_step(self, target: Target, state: PyTree) -> int:
        """Gradients of the log-joint in one step, over a batch or all rows.

        Evaluations of the curvature are not counted. Samplers report theirs in Info.
        """
        return int(self.capabilities.needs_gradient)

    # The result

    def objective(self, key: Array, target: Target, state: PyTree) -> dict[str, Array] | None:
        """What an evaluation reports instead of a Monte-Carlo lower bound.

        "objective" and its Monte-Carlo "error", and further metrics by name. None: the lower
        bound, or the log-joint at q's mean if the method has none.
        """
        return None

    def bind_state(self, target: Target, state: PyTree) -> Target:
        """The target at this state; a different one if the steps also train frozen leaves."""
        return target

    @property
    def predicts_by_itself(self) -> bool:
        """Whether the network itself predicts at draws of q, as it is evaluated in a run."""
        return True

    def predictive_target(self, target: Target, q: Family) -> Target:
        """The target whose network predicts for draws of q."""
        return target

    def predictive_draws(
        self, target: Target, q: Family, key: Array, num: int, x: PyTree
    ) -> tuple[Target, PyTree, PyTree]:
        """What predicts at the rows of x: a target, `num` draws of its parameters, and its rows.

        Many draws of many weights are `StreamedDraws`.
        """
        return self.predictive_target(target, q), draws_of(q, key, num), x

    def run_notes(self, target: Target, params: PyTree) -> list[str]:
        """Notes on a run with this model, for the user; `fit` adds them to the result."""
        return []


def is_unset(value: object) -> bool:
    """Whether a hyper-parameter is left to the network's size."""
    return value is None or (isinstance(value, str) and value == "auto")


def _declared(cls: type) -> dict[str, dataclasses.Field]:
    """Fields of this class and its bases, before the dataclass is made."""
    found: dict[str, dataclasses.Field] = {}
    for base in reversed(cls.__mro__):
        found |= vars(base).get("__dataclass_fields__", {})
    return found | {k: v for k, v in vars(cls).items() if isinstance(v, dataclasses.Field)}


def hyper_parameters(algorithm: Algorithm | type[Algorithm]) -> dict[str, dict[str, Any]]:
    """Name, documentation, default and check of every hyper-parameter."""
    return {f.name: dict(f.metadata) for f in dataclasses.fields(algorithm) if "doc" in f.metadata}


def check_hyper(name: str, value: object, metadata: Mapping[str, Any]) -> None:
    """Refuse a value that the declaration of the hyper-parameter does not allow."""
    check, default = metadata["check"], metadata["default"]
    if check["free"] or (value is None and check["optional"]):
        return
    if check["schedule"] and isinstance(value, ScheduledRate):
        return
    if check["choices"] is not None:
        if value not in check["choices"]:
            refuse(name, value, "be one of " + ", ".join(map(repr, check["choices"])))
        return
    if isinstance(default, bool):
        if not isinstance(value, bool):
            refuse(name, value, "be True or False")
        return
    if isinstance(default, str):
        if not isinstance(value, str):
            refuse(name, value, "be a string")
        return
    whole = isinstance(default, int) or (default is None and not check["real"])
    number = np.asarray(value)
    if number.dtype == bool or not np.issubdtype(number.dtype, np.number) or number.ndim:
        refuse(name, value, "be a whole number" if whole else "be a number")
    if whole and not np.issubdtype(number.dtype, np.integer):
        refuse(name, value, "be a whole number")
    if not np.isfinite(number):
        refuse(name, value, "be finite")
    for bound, holds, words in (
        ("above", np.greater, "be greater than"),
        ("least", np.greater_equal, "be at least"),
        ("below", np.less, "be less than"),
        ("most", np.less_equal, "be at most"),
    ):
        if check[bound] is not None and not holds(number, check[bound]):
            refuse(name, value, f"{words} {check[bound]:g}")


def freeze(value: PyTree) -> PyTree:
    """Mappings as sorted pairs and lists as tuples, so that a static field is hashable."""
    if isinstance(value, dict | types.MappingProxyType):
        return tuple(sorted((k, freeze(v)) for k, v in value.items()))
    return tuple(freeze(v) for v in value) if isinstance(value, list) else value


def _plain_number(value: object) -> object:
    """A number of NumPy as one of Python."""
    return value.item() if isinstance(value, np.generic) else value
