"""Which classes a file may name: those of this library, and those a user has registered.

A class is named by a tag, such as "likelihoods.Gaussian", that does not depend on the module it is
defined in.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import pkgutil
import types
from functools import cache
from typing import Any, NoReturn, TypeVar

from bayeslearn.errors import StorageError, refuse

# Tags are "group.Class"; the modules, and those inside packages, in which a group's classes are.
LOADABLE_MODULES = {
    "algorithms": ("bayeslearn.algorithms",),
    "families": ("bayeslearn.families",),
    "geometry": ("bayeslearn.geometry",),
    "likelihoods": ("bayeslearn.models.likelihoods",),
    "model": ("bayeslearn.models.model", "bayeslearn.models.target", "bayeslearn.data.rows"),
    "networks": ("bayeslearn.models.networks",),
    "priors": ("bayeslearn.models.priors",),
}
Class = TypeVar("Class", bound=type)


def register(cls: Class) -> Class:
    """Let a class of your own be saved, and be loaded where it is registered too.

    It is an `eqx.Module` or a dataclass whose fields are arrays, or settings that JSON can hold.
    """
    if not (dataclasses.is_dataclass(cls) or is_named_tuple(cls)):
        refuse("cls", cls, "be an eqx.Module, a dataclass or a NamedTuple")
    classes()[f"{cls.__module__}.{cls.__qualname__}"] = cls
    return cls


@cache
def classes() -> dict[str, type]:
    """The classes that a description may name; the only ones that are ever made."""
    found: dict[str, type] = {}
    for group, names in LOADABLE_MODULES.items():
        for module in itertools.chain.from_iterable(map(_modules, names)):
            for name, cls in vars(module).items():
                is_own = isinstance(cls, type) and cls.__module__ == module.__name__
                is_data = is_own and (dataclasses.is_dataclass(cls) or is_named_tuple(cls))
                if is_data and not name.startswith("_"):
                    if f"{group}.{name}" in found:
                        raise RuntimeError(f"Two classes of {group} are called {name}.")
                    found[f"{group}.{name}"] = cls
    return found


def _modules(name: str) -> list[types.ModuleType]:
    """A module and, if it is a package, those inside it."""
    package = importlib.import_module(name)
    inside = pkgutil.iter_modules(getattr(package, "__path__", []))
    return [package, *(importlib.import_module(f"{name}.{info.name}") for info in inside)]


def is_named_tuple(cls: type) -> bool:
    """Whether a class is a NamedTuple."""
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def field_names(cls: Any) -> list[str]:
    """Names of the fields of a NamedTuple or a dataclass."""
    return list(cls._fields) if is_named_tuple(cls) else [f.name for f in dataclasses.fields(cls)]


class NotSaved:
    """Stands for a function, which cannot be saved as data."""

    def __init__(self, what: str):
        self.what = what

    def __repr__(self) -> str:
        return f"<{self.what}, not saved>"

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise StorageError(f"{self.what} was not saved with this posterior: give it again.")
