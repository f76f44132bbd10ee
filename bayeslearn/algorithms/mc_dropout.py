"""MC dropout (Gal and Ghahramani 2016; survey section 3).

    W_i = M_i diag(z_i),  z_ij ~ Bernoulli(p_i)       p_i is the probability to keep an input
    minimise  1/N sum_n E(y_n, f(x_n, W_n)) + sum_i lambda_i |M_i|^2 + lambda_b |b_i|^2,
    lambda_i = p_i l^2 / (2 tau N),  lambda_b = l^2 / (2 tau N),  E = |y - f|^2 / 2

Times N tau that is minus the log-likelihood and p_i l^2 / 2 |M_i|^2, where l^2 is the prior's
precision and tau the noise's. The model's prior and likelihood define l and tau, and the objective,
which is maximised, is

    sum_n E[log p(y_n | x_n, W)] + E[log p(W)],       E|W_i|^2 = p_i |M_i|^2,

the evidence lower bound without q's entropy, which a singular q does not have. A mask is drawn for
each row in every step; a draw of a prediction has one mask for all rows. The likelihood's own
parameters have no mask, and their own prior.

Here masks are z / p ("inverted dropout"), so that the parameters are E[W_i] = p_i M_i, the weights
of the plain network, as in other frameworks; the penalty is then l^2 / (2 p_i) |E W_i|^2. Gaussian
masks N(1, (1 - p) / p) have the same two moments.

Differs from the survey: p is the probability to keep (errata 29), masks stay on for prediction
(errata 30), and the objective is not a bound (errata 34).
"""

from __future__ import annotations

import dataclasses
import fnmatch
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bayeslearn import tree
from bayeslearn.algorithms.base import Capabilities, InfoFields, hyper, hyper_parameters
from bayeslearn.algorithms.optimizers import (
    Optimizer,
    Options,
    check_optimizer,
    make_optimizer,
)
from bayeslearn.algorithms.sized import TrainedNetwork
from bayeslearn.data.rows import Batch
from bayeslearn.errors import Shown, refuse
from bayeslearn.families import Dropout
from bayeslearn.families.base import Family
from bayeslearn.models.networks.masked import (
    KeyedDraws,
    KeyedRows,
    MaskedNetwork,
    Site,
    draw_masks,
    find_sites,
    has_dropout,
    masked_weights,
)
from bayeslearn.models.priors.checks import require_fixed_scale
from bayeslearn.models.priors.gaussian import GaussianPrior
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

EVALUATION_MASKS = 8  # masks per row in an evaluation of the objective
PROBES = 32  # keys and rows on which a network is tested for its own masks


class MCDropoutState(NamedTuple):
    """The mean weights, and the optimiser's state."""

    position: PyTree  # E[W], and the likelihood's own parameters
    optimizer_state: PyTree


class MCDropoutInfo(NamedTuple):
    """The objective of a step."""

    log_joint: Array  # E[log p(D | W)] + E[log p(W)], estimated from the batch and its masks
    nll: Array  # -E[log p(D | W)], estimated likewise


class MCDropout(TrainedNetwork):
    """Dropout with masks also in prediction: epistemic uncertainty at the cost of a plain network.

    Its limits: the posterior is singular (inputs of a layer are on or off; biases are constant),
    the prior behind it is improper, and the standard deviations follow from `keep` and the size of
    the weights: they do not shrink with more data. Choose `keep` and the noise on held-out rows.

    `train=False` wraps a network that was trained with dropout before. Equinox modules with Dropout
    layers use the masks of those layers.
    """

    name: ClassVar[str] = "mc-dropout"
    title: ClassVar[str] = "dropout with masks also in prediction"
    capabilities: ClassVar[Capabilities] = Capabilities(
        needs_gaussian_prior=True, has_lower_bound=False
    )
    info_fields: ClassVar[InfoFields] = InfoFields(progress=("nll",), small_only=("log_joint",))

    keep: float = hyper(0.95, "probability to keep an input of a weight layer", above=0, most=1)
    keep_by_layer: tuple[tuple[str, float], ...] = hyper(  # as pairs
        (),
        'other probabilities by name pattern, such as {"layers.0.*": 0.8}; 1 for no mask',
        free=True,
    )
    mask_input: bool = hyper(True, "also mask the inputs of the first weight layer")
    noise: str = hyper(
        "bernoulli",
        "masks that switch off, or multiply by N(1, (1 - keep) / keep)",
        choices=("bernoulli", "gaussian"),
    )
    masks: str = hyper(
        "auto",
        "who draws them: the method, on the inputs of every weight layer, or the network, from its"
        " key; auto: the network if it has Equinox Dropout layers",
        choices=("auto", "method", "network"),
    )
    train: bool = hyper(
        True, "False: the network's weights are frozen, and only the noise scale is learned"
    )
    optimizer: Optimizer = hyper("adam", "name of an Optax optimiser, or the object", free=True)
    optimizer_options: Options = hyper((), "further arguments of the optimiser", free=True)

    def __check_init__(self) -> None:
        check_optimizer(self.optimizer, self.optimizer_options)
        pairs = self.keep_by_layer
        if not isinstance(pairs, tuple) or not all(
            isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)
            for pair in pairs
        ):
            must = "map name patterns to probabilities"
            refuse("keep_by_layer", pairs, must, 'Write {"layers.0.*": 0.8}.')
        for pattern, keep in pairs:
            is_number = isinstance(keep, int | float | np.number) and not isinstance(keep, bool)
            if not is_number or not 0 < keep <= 1:
                must = "have probabilities above 0 and at most 1"
                refuse("keep_by_layer", Shown(f"{keep!r} for {pattern!r}"), must)

    def _optimizer(self) -> optax.GradientTransformation:
        return make_optimizer(self.optimizer, self.optimizer_options, self.schedule())

    # Masked weights

    def _has_own_masks(self, target: Target) -> bool:
        """Whether the network draws the masks."""
        return self.masks == "network" or (self.masks == "auto" and has_dropout(target.network))

    def _sites(self, target: Target, params: PyTree) -> tuple[tuple[Site, ...], tuple[float, ...]]:
        """The masked arrays of weights, and the probability to keep an input of each."""
        if self._has_own_masks(target):
            return (), ()
        sites, keeps = [], []
        for index, site in enumerate(find_sites(params["network"])):
            named = [k for p, k in self.keep_by_layer if fnmatch.fnmatchcase(site.name, p)]
            is_plain = index == 0 and not self.mask_input
            if (named and named[0] == 1) or (is_plain and not named):
                continue
            sites.append(site)
            keeps.append(named[0] if named else self.keep)
        return tuple(sites), tuple(keeps)

    def check(self, target: Target, params: PyTree) -> None:
        """Refuse a prior with learned scales or correlations, and a network without masks."""
        require_fixed_scale(target.prior, self.name, "Learn it with bl.BayesByBackprop() first.")
        if target.prior is not None and not target.prior.is_independent:
            refuse(
                "prior",
                Shown("one with correlations"),
                f"be independent for each weight for {self.name}",
                "Use bl.priors.Normal(scale=...).",
            )
        if self._has_own_masks(target):
            self._check_own_masks(target, params)
            return
        sites = find_sites(params["network"])
        names = [site.name for site in sites]
        for pattern, keep in self.keep_by_layer:
            matches = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
            if not matches:
                must = f"name weights with a mask: {', '.join(names)}"
                refuse("keep_by_layer", Shown(f"the pattern {pattern!r}"), must)
            others = [p for p, k in self.keep_by_layer if p != pattern and k != keep]
            twice = [n for n in matches if any(fnmatch.fnmatchcase(n, p) for p in others)]
            if twice:
                refuse("keep_by_layer", Shown(f"two values for {twice[0]}"), "give one to each")
        if not sites or (len(sites) == 1 and not self.mask_input and not self.keep_by_layer):
            refuse(
                "network",
                Shown("one without weight layers to mask"),
                "have dense, convolutional or recurrent layers for MC dropout",
                "A layer of your own needs a method: def input_axes(self): return"
                ' {"weight": -1} for weight @ x, -2 for x @ weight.'
                if not sites
                else "Leave mask_input at True: its only layer is the first.",
            )

    def _check_own_masks(self, target: Target, params: PyTree) -> None:
        """Refuse settings of masks that the network draws, and a network that draws none."""
        for name in ("keep", "keep_by_layer", "mask_input", "noise"):
            if getattr(self, name) != hyper_parameters(self)[name]["default"]:
                refuse(
                    name,
                    getattr(self, name),
                    "be left out: the network draws its own masks",
                    'Set them on its layers, or write masks="method" for a network without any.',
                )
        assert target.data is not None
        x = jax.tree.map(lambda leaf: leaf[:PROBES], target.data.x)
        keys = jax.random.split(jax.random.key(0), PROBES)
        outputs = jax.lax.map(lambda key: target.outputs(params, x, key), keys)
        if bool(jnp.all(outputs == outputs[0])):
            refuse(
                "network",
                Shown("one whose outputs do not depend on its key"),
                'draw masks from its key for masks="network"',
                "Switch its Dropout layers on: eqx.nn.inference_mode(module, value=False).",
            )

    # The objective

    def _masked_log_likelihood(
        self, key: Array, target: Target, params: PyTree, batch: Batch
    ) -> Array:
        """An unbiased estimate of E[log p(D | W)], with masks for each row."""
        rows = len(batch.y)
        if self._has_own_masks(target):
            keys = jax.random.key_data(jax.random.split(key, rows))
            target = dataclasses.replace(target, network=KeyedRows(target.network))
            return target.scaled_log_likelihood(params, batch._replace(x=(batch.x, keys)))
        sites, keeps = self._sites(target, params)
        key_rows, key_batch = jax.random.split(key)

        def part(per_row: bool) -> tuple[list[Site], list[float]]:
            pairs = zip(sites, keeps, strict=True)
            chosen = [(s, k) for s, k in pairs if s.has_mask_per_row == per_row]
            return [s for s, _ in chosen], [k for _, k in chosen]

        own_sites, own_keeps = part(True)
        masks = draw_masks(key_rows, own_sites, own_keeps, self.noise, rows)
        # Arrays outside of layers have one mask for all rows of a batch.
        shared_sites, shared_keeps = part(False)
        shared = draw_masks(key_batch, shared_sites, shared_keeps, self.noise)
        network = masked_weights(params["network"], shared_sites, shared)
        named = {site.name: mask for site, mask in zip(own_sites, masks, strict=True)}
        target = dataclasses.replace(target, network=MaskedNetwork(target.network))
        batch = batch._replace(x=(batch.x, named))
        return target.scaled_log_likelihood({**params, "network": network}, batch)

    def _log_prior(self, target: Target, params: PyTree) -> Array:
        """E[log p(W)] under q: log p(E[W]) minus half the precision times the variance."""
        assert isinstance(target.prior, GaussianPrior)
        std = self._family(target, params).std
        penalty = jax.tree.map(lambda s, prec: 0.5 * prec * s**2, std, target.prior.prec)
        return target.log_prior(params) - tree.total(penalty)

    def _family(self, target: Target, params: PyTree) -> Dropout:
        """The distribution of the masked weights."""
        sites, keeps = self._sites(target, params)
        probabilities = tuple(jnp.asarray(keep, jnp.float64) for keep in keeps)
        return Dropout(params, probabilities, sites, self.noise, self._has_own_masks(target))

    def init(self, key: Array, target: Target, params: PyTree) -> MCDropoutState:
        """At `params`."""
        return MCDropoutState(params, self._optimizer().init(params))

    def step(
        self, key: Array, target: Target, state: MCDropoutState, batch: Batch | None
    ) -> tuple[MCDropoutState, MCDropoutInfo]:
        """One step of the optimiser under random masks."""
        assert batch is not None

        def loss(params: PyTree) -> tuple[Array, MCDropoutInfo]:
            log_likelihood = self._masked_log_likelihood(key, target, params, batch)
            log_joint = log_likelihood + self._log_prior(target, params)
            return -log_joint / target.num_data, MCDropoutInfo(log_joint, -log_likelihood)

        gradient, info = jax.grad(loss, has_aux=True)(state.position)
        updates, optimizer_state = self._optimizer().update(
            gradient, state.optimizer_state, state.position
        )
        position = jax.tree.map(lambda w, u: w + jnp.asarray(u, w.dtype), state.position, updates)
        if not self.train:
            position = {**position, "network": state.position["network"]}
        return MCDropoutState(position, optimizer_state), info

    def objective(self, key: Array, target: Target, state: MCDropoutState) -> dict[str, Array]:
        """The objective on all rows, with several masks for each."""
        assert target.data is not None
        data = target.data
        terms = jax.lax.map(
            lambda k: self._masked_log_likelihood(k, target, state.position, data),
            jax.random.split(key, EVALUATION_MASKS),
        )
        log_joint = jnp.mean(terms) + self._log_prior(target, state.position)
        return {
            "log_joint": log_joint,
            "nll": -jnp.mean(terms),
            "objective": log_joint,
            "error": jnp.std(terms, ddof=1) / jnp.sqrt(EVALUATION_MASKS),
        }

    def approximation(
        self, target: Target, state: MCDropoutState, draws: PyTree | None = None
    ) -> Dropout:
        """The distribution of the masked weights."""
        return self._family(target, state.position)

    def predictive_target(self, target: Target, q: Family) -> Target:
        """The target whose network takes draws with a key, if it draws its own masks."""
        assert isinstance(q, Dropout)
        if not q.has_own_masks:
            return target
        network = KeyedDraws(target.network)
        return dataclasses.replace(target, network=network, dtypes=("uint32", *target.dtypes))
