"""NUTS: Hamiltonian Monte Carlo that chooses its own path length (Hoffman and Gelman 2014).

The kernel is BlackJAX's (multinomial, iterative); warm-up is ours, the same as HMC's.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.algorithms import warmup as warming
from bayeslearn.algorithms.base import Algorithm, hyper
from bayeslearn.algorithms.hmc import HMCState
from bayeslearn.families import Draws
from bayeslearn.model import Batch, Target
from bayeslearn.tree import Array, PyTree


class NUTSInfo(NamedTuple):
    log_density: Array
    acceptance: Array  # average acceptance probability over the trajectory
    diverging: Array
    step_size: Array
    num_gradients: Array


class NUTS(Algorithm):
    """The no-U-turn sampler, the reference the others are held against."""

    name: ClassVar[str] = "nuts"
    title: ClassVar[str] = "no-U-turn sampler"
    is_sampler: ClassVar[bool] = True
    takes_minibatches: ClassVar[bool] = False
    has_lower_bound: ClassVar[bool] = False
    shown: ClassVar[tuple[str, ...]] = ("acceptance", "diverging")

    num_warmup: int = hyper(500, "steps that adapt and are thrown away", least=0)
    num_samples: int = hyper(500, "draws kept per chain", least=1)
    thin: int = hyper(1, "steps per kept draw", least=1)
    step_size: float = hyper(0.1, "leapfrog step, where its adaptation starts", above=0)
    max_doublings: int = hyper(7, "most doublings of a trajectory (2^n gradients)", least=1)
    mass_matrix: str = hyper(
        "diagonal", "mass matrix from warm-up", choices=("identity", "diagonal", "dense")
    )
    target_acceptance: float = hyper(0.8, "aim of the step size", above=0, below=1)

    def check(self, target: Target, params: PyTree) -> None:
        if self.mass_matrix == "dense":
            tree.check_dense(tree.size(params), 'mass_matrix="diagonal"')

    def init(self, key: Array, target: Target, params: PyTree) -> HMCState:
        position, warmup = warming.start(
            key, target, params, mass_matrix=self.mass_matrix, step_size=self.step_size
        )
        log_density, gradient = jax.value_and_grad(target.log_joint)(position)
        return HMCState(position, log_density, gradient, jnp.zeros((), jnp.int32), warmup)

    def step(
        self, key: Array, target: Target, state: HMCState, batch: Batch | None
    ) -> tuple[HMCState, NUTSInfo]:
        from blackjax.mcmc import hmc, nuts

        # One vector for all weights, as in HMC.
        unravel = tree.unraveler(state.position)
        kernel = nuts.build_kernel()
        new, told = kernel(
            key,
            hmc.HMCState(tree.ravel(state.position), state.log_density, tree.ravel(state.gradient)),
            lambda v: target.log_joint(unravel(v)),
            state.warmup.step_size,
            state.warmup.inverse_mass,
            self.max_doublings,
        )
        acceptance = jnp.nan_to_num(told.acceptance_rate, nan=0.0)
        warmup = warming.update(
            state.warmup,
            state.count,
            new.position,
            acceptance,
            num_warmup=self.num_warmup,
            mass_matrix=self.mass_matrix,
            target_acceptance=self.target_acceptance,
        )
        info = NUTSInfo(
            new.logdensity,
            acceptance,
            told.is_divergent.astype(jnp.float64),
            state.warmup.step_size,
            told.num_integration_steps,
        )
        position, gradient = unravel(new.position), unravel(new.logdensity_grad)
        return HMCState(position, new.logdensity, gradient, state.count + 1, warmup), info

    def meetings(self) -> tuple[int, ...]:
        return () if self.mass_matrix == "identity" else warming.meetings(self.num_warmup)

    def pool(self, states: HMCState) -> HMCState:
        return states._replace(warmup=warming.pooled(states.warmup))

    def approximation(self, target: Target, state: Any, draws: PyTree | None = None) -> Draws:
        return Draws(draws)
