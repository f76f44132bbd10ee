"""The contract: an algorithm is a frozen dataclass of hyper-parameters with pure methods.

    init(key, target, params)            -> state          what the next step needs
    init_from(key, target, q)            -> state          the same, from a warm start's q
    step(key, target, state, batch)      -> state, info    info: scalars for a person or a plot
    position(state)                      -> params         what `fit` keeps of a sampler's step
    approximation(target, state, draws)  -> family         the q it has learned, or the draws

Numbers are dynamic: another learning rate does not recompile. Sizes, names and functions are
static. Fields are declared with `hyper`, which holds their documentation and their check.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import equinox as eqx
import numpy as np

from bayeslearn.errors import refuse
from bayeslearn.model import Batch, Target
from bayeslearn.tree import Array, PyTree


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
) -> Any:
    """A documented, checked hyper-parameter.

    Floats are dynamic; ints, strings, flags and whatever is `free` (functions, mappings) are
    static. `optional` also allows None; `real` says that a number whose default is None is not
    a count, and dynamic.
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
    }
    return eqx.field(
        default=default,
        static=not dynamic,
        converter=freeze if free else _plain_number,
        metadata={"doc": doc, "check": check, "default": default},
    )


class Algorithm(eqx.Module):
    """Base of all algorithms; subclasses are final."""

    name: ClassVar[str]  # on the command line and in `bl.ALGORITHMS`
    title: ClassVar[str]  # one line for tables
    is_sampler: ClassVar[bool] = False
    needs_gradient: ClassVar[bool] = True  # of the model, in its own steps
    needs_per_example: ClassVar[bool] = False
    needs_gaussian_prior: ClassVar[bool] = False
    needs_linear_model: ClassVar[bool] = False  # linear in its weights, Gaussian noise
    takes_minibatches: ClassVar[bool] = True
    has_lower_bound: ClassVar[bool] = True
    takes_q: ClassVar[bool] = False  # can begin at a Gaussian, in the place of its warm start
    tries_starts: ClassVar[bool] = False  # its optimum depends on where it starts
    shown: ClassVar[tuple[str, ...]] = ()  # fields of Info on the progress line
    left_to_looks: ClassVar[tuple[str, ...]] = ()  # fields of Info that `fit` has at looks only
    auto_steps: ClassVar[int] = 5000  # what num_steps="auto" means; 1 for closed forms

    def __init_subclass__(cls, **kwargs: Any) -> None:
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

    @property
    def falls(self) -> bool:
        """Whether its step size falls to nothing over a run of known length."""
        return False

    def over(self, num_steps: int) -> Algorithm:
        """This algorithm for a run of so many steps."""
        return self

    def warm_start(self) -> Algorithm | None:
        """The algorithm whose result this one starts from; None to start from the network.

        The noise scale is held while the mode is sought: the joint mode of weights and noise of a
        network with more weights than rows is an interpolation without noise, far from the bulk.
        """
        from bayeslearn.algorithms.map import MAP

        return MAP(learn_noise=False)

    def stirrer(self) -> Algorithm | None:
        """The algorithm whose noise finds better places around a start that has come to rest."""
        return None

    def check(self, target: Target, params: PyTree) -> None:
        """Refuse a model this method cannot serve; called by `fit` before any work."""

    def init(self, key: Array, target: Target, params: PyTree) -> Any:
        raise NotImplementedError

    def init_from(self, key: Array, target: Target, q: Any) -> Any:
        """The state at the warm start's result; methods that can also take over its spread do."""
        return self.init(key, target, q.mean)

    def step(self, key: Array, target: Target, state: Any, batch: Batch | None) -> tuple[Any, Any]:
        raise NotImplementedError

    def position(self, state: Any) -> PyTree:
        return state.position

    def meetings(self) -> tuple[int, ...]:
        """Numbers of steps after which a sampler's chains pool what they have learned."""
        return ()

    def pool(self, states: Any) -> Any:
        """The states of all chains, along a leading axis, after such a meeting."""
        return states

    def approximation(self, target: Target, state: Any, draws: PyTree | None = None) -> Any:
        raise NotImplementedError

    def evidence(self, target: Target, state: Any) -> Array | None:
        """log p(D) where it is known exactly; then it is the elbo, and nothing is sampled."""
        return None

    def objective(self, key: Array, target: Target, state: Any) -> dict[str, Array] | None:
        """ "objective", its "error" and what else to report, where there is no lower bound.

        None: the log-joint at q's mean.
        """
        return None

    def remarks(self, target: Target, params: PyTree) -> list[str]:
        """What a person should know of a run on this model; `fit` adds it to the notes."""
        return []

    def settled(self, target: Target, state: Any) -> Target:
        """The target at this state; another one where the steps move a part of it."""
        return target

    def predictive_target(self, target: Target, q: Any) -> Target:
        """The target whose network predicts for draws of q; `target` unless it is replaced."""
        return target


def _declared(cls: type) -> dict[str, dataclasses.Field]:
    """Fields of this class and of the abstract ones above it, before the dataclass is made."""
    found = dict(getattr(cls, "__dataclass_fields__", {}))
    return found | {k: v for k, v in vars(cls).items() if isinstance(v, dataclasses.Field)}


def hyper_parameters(algorithm: Algorithm | type[Algorithm]) -> dict[str, dict[str, Any]]:
    """Name, documentation, default and check of every hyper-parameter."""
    return {f.name: dict(f.metadata) for f in dataclasses.fields(algorithm) if "doc" in f.metadata}


def check_hyper(name: str, value: Any, metadata: Any) -> None:
    check, default = metadata["check"], metadata["default"]
    if check["free"] or (value is None and check["optional"]):
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


def freeze(value: Any) -> Any:
    """Mappings as sorted pairs, so that a static field can be hashed."""
    if isinstance(value, dict | types.MappingProxyType):
        return tuple(sorted((k, freeze(v)) for k, v in value.items()))
    return tuple(freeze(v) for v in value) if isinstance(value, list) else value


def _plain_number(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


Schedule = Callable[[Array], Array]
