"""What `method="auto"` can choose, by the size of the table. Knows no data and runs nothing.

    work = rows x weights of the network
    up to 2e8      MILE, or the ensemble that it starts from
    beyond         an ensemble, trained on minibatches

Chains are shorter the larger the work, so that a fit takes about a minute on two cores (above 5e7 a
few minutes); with a budget they are as long as it allows.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from bayeslearn.algorithms.base import Algorithm
from bayeslearn.algorithms.ensemble import Ensemble
from bayeslearn.algorithms.map import MAP
from bayeslearn.algorithms.mclmc import MCLMC
from bayeslearn.algorithms.mile import MILE
from bayeslearn.models.priors import Hierarchical, Normal
from bayeslearn.models.priors.base import Prior

PLAIN, ENSEMBLE, MILE_NAME = MAP.name, Ensemble.name, MILE.name
MAX_WORK = 2e8  # rows times weights, of one gradient
TOTAL_WORK = 4e11  # of all chains together
LARGEST_WORK = 1e12  # the same, where chains of MIN_STEPS are more than TOTAL_WORK
USUAL_SECONDS = 60.0  # that they take on two cores
KEPT_DRAWS = 800  # in all
MAX_DRAWN = 6.4e7  # weights of all draws together, 256 MB
TRIAL_WORK = 1e11  # of the chains of a trial on all folds, and of its members' training
TRIAL_ROWS_WORK = 1e8  # rows of trials times weights
MIN_TRIAL_STEPS, MAX_TRIAL_STEPS = 500, 3000  # of a trial's chain
TRAINING_STEPS = 5000  # of a member, if there are not fewer
MIN_STEPS, MAX_STEPS = 2500, 16000  # of a chain
HELD_OUT = 0.15  # of the rows, to stop the members' training
TINY_TABLE = 100  # rows; below, a network must be better than a linear model
SMALL_TABLE = 400  # rows; a smaller network is enough below
MEDIUM_TABLE = 1000  # rows; of classes, a wider network comes first from here on
LARGE_TABLE = 2000  # rows; a linear model is not tried from here on
LINEAR: tuple[int, ...] = ()
HIERARCHICAL = "hierarchical"  # prior scales that chains infer; see `bl.priors.Hierarchical`
PRIOR_SCALES = (3.0, 1.0, 10.0)  # of ensembles, which need one; the first with everything else
CLASS_PRIOR_SCALES = (3.0, 10.0)
NOISES = ("student-t", "learned")
LOG_NORMAL = "log-normal"  # of positive, skewed numbers
Noise = str | float | None
PriorScale = str | float


class Candidate(NamedTuple):
    """Settings of a network and its likelihood; `noise` is None for classes."""

    hidden: tuple[int, ...]
    prior_scale: PriorScale
    noise: Noise = None


class Method(NamedTuple):
    """A method and its length."""

    name: str
    num_members: int
    num_steps: int  # of each chain, half of them warm-up; 0: no chains
    num_draws: int = KEPT_DRAWS  # in all

    def algorithm(self) -> Algorithm:
        """The algorithm with these settings."""
        if self.name != MILE_NAME:
            number = 1 if self.name == PLAIN else self.num_members
            return Ensemble(num_members=number, validation_fraction=HELD_OUT)
        draws = max(1, self.num_draws // self.num_members)
        thin = max(1, self.num_steps // (2 * draws))
        draws = min(draws, max(1, self.num_steps // 2 // thin))
        sampler = MCLMC(num_warmup=self.num_steps // 2, num_samples=draws, thin=thin)
        return MILE(num_members=self.num_members, sampler=sampler, validation_fraction=HELD_OUT)


def network_sizes(num_rows: int, has_classes: bool) -> tuple[tuple[int, ...], ...]:
    """Hidden layers that are tried; the first with everything else, () is the linear model."""
    shallow, deep, wide = (16, 16), (16, 16, 16, 16), (32, 32, 32)
    if num_rows < SMALL_TABLE:
        return (LINEAR, shallow) if num_rows < TINY_TABLE else (shallow, LINEAR)
    sizes: tuple[tuple[int, ...], ...] = (deep, shallow)
    if has_classes:
        sizes = (shallow, wide) if num_rows < MEDIUM_TABLE else (wide, shallow)
    return (*sizes, LINEAR) if num_rows < LARGE_TABLE else sizes


def prior_of(scale: PriorScale, is_mlp: bool) -> Prior:
    """The prior of a network; inputs of an MLP have a scale each."""
    if isinstance(scale, str):
        return Hierarchical(by_input=("layers.0.weight",) if is_mlp else ())
    return Normal.fan_in(scale)


def num_weights(hidden: tuple[int, ...], num_inputs: int, num_outputs: int) -> int:
    """Weights and biases of the network."""
    sizes = (num_inputs, *hidden, num_outputs)
    return sum((m + 1) * n for m, n in itertools.pairwise(sizes))


def method_for(name: str, work: float, speed: float = 1.0, num_weights: float = 1.0) -> Method:
    """The method with its length; `speed` multiplies the default work."""
    members = 8 if work * MIN_STEPS * 8 < TOTAL_WORK * speed else 4
    if name != MILE_NAME:
        return Method(name, members, 0)
    steps = TOTAL_WORK * speed / (2 * members * work)
    least = min(MIN_STEPS, LARGEST_WORK / (2 * members * work))
    draws = int(min(KEPT_DRAWS, MAX_DRAWN / num_weights))
    return Method(name, members, int(min(MAX_STEPS * max(speed, 1.0), max(least, steps))), draws)


def trial_steps(work: float, budget: float | None) -> tuple[int, int | str]:
    """Steps of the chains, and of the members' training, of a trial with two members.

    `work` is that of all folds.
    """
    total = TRIAL_WORK if budget is None else TRIAL_WORK * min(1.0, budget / USUAL_SECONDS)
    chain = int(min(MAX_TRIAL_STEPS, max(MIN_TRIAL_STEPS, total / (4 * work))))
    training = int(max(MIN_TRIAL_STEPS, total / (2 * work)))
    return chain, training if training < TRAINING_STEPS else "auto"


def allows_chains(work: float) -> bool:
    """Whether chains on all rows are short enough work."""
    return work <= MAX_WORK
