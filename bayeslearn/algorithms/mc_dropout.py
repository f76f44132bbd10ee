"""MC dropout (Gal and Ghahramani 2016; survey section 3).

    W_i = M_i diag(z_i),  z_ij ~ Bernoulli(p_i)       p_i is the probability to keep an input
    minimise  1/N sum_n E(y_n, f(x_n, W_n)) + sum_i lambda_i |M_i|^2 + lambda_b |b_i|^2,
    lambda_i = p_i l^2 / (2 tau N),  lambda_b = l^2 / (2 tau N),  E = |y - f|^2 / 2

Times N tau that is minus the log-likelihood and p_i l^2 / 2 |M_i|^2, where l^2 is the prior's
precision and tau the noise's. So nobody has to relate l, tau and N: the model's prior and
likelihood say them, and what is maximised is

    sum_n E[log p(y_n | x_n, W)] + E[log p(W)],       E|W_i|^2 = p_i |M_i|^2,

the evidence lower bound without q's entropy, which a singular q does not have. A mask is drawn for
each row in every step; a prediction's draws have one mask for all rows. The likelihood's own
parameters carry no mask and keep their own prior.

Written otherwise here: masks are z / p ("inverted"), so that what is learned is E[W_i] = p_i M_i,
the weights of the plain network, which is how every framework trains dropout; the penalty is then
l^2 / (2 p_i) |E W_i|^2. Gaussian masks N(1, (1 - p) / p) have the same two moments.

Differs from the survey: p is the probability to keep (errata 29), masks stay on for prediction
(errata 30), and the objective is not a bound (errata 34).
"""

from __future__ import annotations

import dataclasses
import fnmatch
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bayeslearn import tree
from bayeslearn.algorithms.base import Algorithm, Capabilities, InfoFields, hyper, hyper_parameters
from bayeslearn.algorithms.optimizers import check_optimizer, make_optimizer, robbins_monro
from bayeslearn.data.rows import Batch
from bayeslearn.errors import Shown, refuse
from bayeslearn.families import Dropout
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
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

LOOKS = 8  # masks per row when the objective is measured
PROBES = 32  # keys and rows on which a network must show masks of its own


class MCDropoutState(NamedTuple):
    position: PyTree  # E[W], and the likelihood's own parameters
    optimizer_state: Any


class MCDropoutInfo(NamedTuple):
    log_joint: Array  # E[log p(D | W)] + E[log p(W)], estimated from the batch and its masks
    nll: Array  # -E[log p(D | W)], estimated likewise


class MCDropout(Algorithm):
    """Dropout whose masks stay on for prediction: doubt at the cost of training a plain network.

    Its limits: the posterior is singular (each layer's inputs are on or off; biases do not vary),
    the prior behind it is improper, and the spread follows from `keep` and the size of the
    weights: it does not shrink as data are added. Choose `keep` and the noise on held-out rows.

    A network trained elsewhere with dropout is wrapped by `train=False`. Equinox modules with
    Dropout layers use those layers' own masks.
    """

    name: ClassVar[str] = "mc-dropout"
    title: ClassVar[str] = "dropout with its masks on for prediction"
    capabilities: ClassVar[Capabilities] = Capabilities(
        needs_gaussian_prior=True, has_lower_bound=False
    )
    info_fields: ClassVar[InfoFields] = InfoFields(progress=("nll",))

    learning_rate: float = hyper(0.01, "step size of the optimiser", above=0)
    decay_steps: float = hyper(500.0, "steps after which the step size begins to fall", above=0)
    power: float = hyper(0.5, "how fast it falls: 1 / (1 + t / decay_steps)^power", least=0)
    keep: float = hyper(0.95, "probability to keep an input of a weight layer", above=0, most=1)
    keep_by_layer: Any = hyper(
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
        "who draws them: the method, on the inputs of every weight layer, or the network, from the"
        " key it is given; auto: the network if it has Equinox Dropout layers",
        choices=("auto", "method", "network"),
    )
    train: bool = hyper(
        True, "False keeps the network's weights as they are; only the noise scale is learned"
    )
    optimizer: Any = hyper("adam", "name of an Optax optimiser, or the object", free=True)
    optimizer_options: Any = hyper((), "further arguments of the optimiser", free=True)

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
                must = "hold probabilities above 0 and at most 1"
                refuse("keep_by_layer", Shown(f"{keep!r} for {pattern!r}"), must)

    def _optimizer(self) -> optax.GradientTransformation:
        schedule = robbins_monro(self.learning_rate, self.decay_steps, self.power)
        return make_optimizer(self.optimizer, self.optimizer_options, schedule)

    # Where the masks are

    def _has_own_masks(self, target: Target) -> bool:
        return self.masks == "network" or (self.masks == "auto" and has_dropout(target.network))

    def _sites(self, target: Target, params: PyTree) -> tuple[tuple[Site, ...], tuple[Any, ...]]:
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
        require_fixed_scale(target.prior, self.name, "Learn it with bl.BayesByBackprop() first.")
        if not target.prior.is_independent:
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
            told = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
            if not told:
                must = f"name weights with a mask: {', '.join(names)}"
                refuse("keep_by_layer", Shown(f"the pattern {pattern!r}"), must)
            others = [p for p, k in self.keep_by_layer if p != pattern and k != keep]
            twice = [name for name in told if any(fnmatch.fnmatchcase(name, p) for p in others)]
            if twice:
                refuse("keep_by_layer", Shown(f"two values for {twice[0]}"), "give one to each")
        if not sites or (len(sites) == 1 and not self.mask_input and not self.keep_by_layer):
            refuse(
                "network",
                Shown("one without weight layers to mask"),
                "have dense, convolutional or recurrent layers for MC dropout",
                "A layer of your own says where its inputs are: def input_axes(self): return"
                ' {"weight": -1} for weight @ x, -2 for x @ weight.'
                if not sites
                else "Leave mask_input at True: its only layer is the first.",
            )

    def _check_own_masks(self, target: Target, params: PyTree) -> None:
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

    # What is maximised

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

        def part(per_row: bool) -> tuple[list[Site], list[Any]]:
            pairs = zip(sites, keeps, strict=True)
            kept = [(s, k) for s, k in pairs if s.has_mask_per_row == per_row]
            return [s for s, _ in kept], [k for _, k in kept]

        own_sites, own_keeps = part(True)
        masks = draw_masks(key_rows, own_sites, own_keeps, self.noise, rows)
        # Arrays outside of layers can only be masked for all rows of a batch alike.
        shared_sites, shared_keeps = part(False)
        shared = draw_masks(key_batch, shared_sites, shared_keeps, self.noise)
        network = masked_weights(params["network"], shared_sites, shared)
        named = {site.name: mask for site, mask in zip(own_sites, masks, strict=True)}
        target = dataclasses.replace(target, network=MaskedNetwork(target.network))
        batch = batch._replace(x=(batch.x, named))
        return target.scaled_log_likelihood({**params, "network": network}, batch)

    def _log_prior(self, target: Target, params: PyTree) -> Array:
        """E[log p(W)] under q, which is log p(E[W]) less half the precision times the variance."""
        assert target.prior is not None
        std = self._family(target, params).std
        lost = jax.tree.map(lambda s, prec: 0.5 * prec * s**2, std, target.prior.prec)
        return target.log_prior(params) - tree.total(lost)

    def _family(self, target: Target, params: PyTree) -> Dropout:
        sites, keeps = self._sites(target, params)
        keeps = tuple(jnp.asarray(keep, jnp.float64) for keep in keeps)
        return Dropout(params, keeps, sites, self.noise, self._has_own_masks(target))

    def init(self, key: Array, target: Target, params: PyTree) -> MCDropoutState:
        return MCDropoutState(params, self._optimizer().init(params))

    def step(
        self, key: Array, target: Target, state: MCDropoutState, batch: Batch | None
    ) -> tuple[MCDropoutState, MCDropoutInfo]:
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
        assert target.data is not None
        data = target.data
        terms = jax.lax.map(
            lambda k: self._masked_log_likelihood(k, target, state.position, data),
            jax.random.split(key, LOOKS),
        )
        log_joint = jnp.mean(terms) + self._log_prior(target, state.position)
        return {
            "log_joint": log_joint,
            "nll": -jnp.mean(terms),
            "objective": log_joint,
            "error": jnp.std(terms, ddof=1) / jnp.sqrt(LOOKS),
        }

    def approximation(
        self, target: Target, state: MCDropoutState, draws: PyTree | None = None
    ) -> Dropout:
        return self._family(target, state.position)

    def predictive_target(self, target: Target, q: Any) -> Target:
        if not q.has_own_masks:
            return target
        network = KeyedDraws(target.network)
        return dataclasses.replace(target, network=network, dtypes=("uint32", *target.dtypes))
