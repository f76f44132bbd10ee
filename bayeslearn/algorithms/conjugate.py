r"""Conjugate linear regression: the exact posterior in closed form (survey section 3).

For a network that is linear in its weights, f(x, w) = f(x, 0) + J(x) w:

**Known noise** (`Gaussian(noise_scale=...)`, `MultivariateGaussian(cov=...)`), with R the noise's
covariance and prior N(mean0, P0^-1):

    prec = P0 + sum_i J_i^T R^-1 J_i,    prec mean = P0 mean0 + sum_i J_i^T R^-1 (y_i - f_i(0))

**Unknown noise** (`Gaussian()`). Sigma ~ IW(scale0, dof0), B | Sigma ~ MN(B0, prec0^-1, Sigma); for
one column that is the normal-inverse-gamma. The weights' prior is that of the model SCALED BY THE
NOISE: `Normal(scale=s)` means w | sigma ~ N(mean0, s^2 sigma^2). The model's own prior of the log
noise scale is replaced by the inverse-Wishart with dof0 = `noise_dof` and mean `noise_scale`^2 I:

    prec  = prec0 + X^T X,               prec B = prec0 B0 + X^T Y
    scale = scale0 + (Y - X B)^T (Y - X B) + (B - B0)^T prec0 (B - B0),   dof = dof0 + N

(`update`; the posterior is the prior of the next update, in any number of batches). All columns
have one Sigma, so their noise may be correlated. Predictions are exactly Student's t
(`families.student`), and `posterior.elbo` is exactly log p(D):

    log p(D) = -N d/2 log(pi) + d/2 log(|prec0| / |prec|) + dof0/2 log|scale0| - dof/2 log|scale|
               + log Gamma_d(dof / 2) - log Gamma_d(dof0 / 2)

The survey's product prior of independent weights and noise is not conjugate; use a sampler for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.algorithms.base import Algorithm, Capabilities, InfoFields, hyper
from bayeslearn.data.batches import in_chunks
from bayeslearn.data.rows import Batch
from bayeslearn.errors import Shown, refuse
from bayeslearn.families import FullGaussian
from bayeslearn.families.base import Family
from bayeslearn.families.student import (
    ConjugateFamily,
    ConjugatePrior,
    MatrixNormalInverseWishart,
    linear_parts,
)
from bayeslearn.models.likelihoods.base import Likelihood
from bayeslearn.models.likelihoods.gaussian import Gaussian
from bayeslearn.models.likelihoods.multivariate import MultivariateGaussian
from bayeslearn.models.priors.checks import require_fixed_scale
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

NOISES = ("auto", "known", "normal-inverse-gamma", "matrix-normal-inverse-wishart")
JACOBIAN_SIZE = 2**24  # numbers of a batch's Jacobian, 128 MiB, where that is enough for
FEWEST_ROWS = 1024
PROBES = 8  # rows at which linearity is tested
TOLERANCE = 1e-3  # relative to the outputs, in the network's own precision


class ConjugateState(NamedTuple):
    """The exact posterior and its evidence."""

    family: Family
    log_evidence: Array


class ConjugateInfo(NamedTuple):
    """The evidence."""

    log_evidence: Array  # log p(D), exact


def known_noise(
    prior_mean: Array,
    prior_prec: Array,
    jacobian: Array,
    y: Array,
    root: Array,
    weight: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Mean, precision and log-evidence; prior_prec (k, k), jacobian (rows, o, k), y (rows, o).

    `root` is the Cholesky factor of the noise covariance, `weight` how often each row counts.
    """
    num_data, (jacobian, y) = _weighted(weight, jacobian, y)
    whitener = jax.scipy.linalg.solve_triangular(root, jnp.eye(len(root)), lower=True)
    features = (whitener @ jacobian).reshape(-1, jacobian.shape[-1])
    scaled = (y @ whitener.T).reshape(-1)
    prec = prior_prec + features.T @ features
    mean = jnp.linalg.solve(prec, prior_prec @ prior_mean + features.T @ scaled)
    residual, shift = scaled - features @ mean, mean - prior_mean
    log_evidence = (
        -0.5 * num_data * len(root) * jnp.log(2 * jnp.pi)
        - num_data * jnp.sum(jnp.log(jnp.diagonal(root)))
        + 0.5 * jnp.linalg.slogdet(prior_prec).logabsdet
        - 0.5 * jnp.linalg.slogdet(prec).logabsdet
        - 0.5 * (residual @ residual + shift @ prior_prec @ shift)
    )
    return mean, prec, log_evidence


def update(
    previous: MatrixNormalInverseWishart, x: Array, y: Array, weight: Array | None = None
) -> tuple[MatrixNormalInverseWishart, Array]:
    """The posterior after rows (x, y), and log p(y | x, previous)."""
    num_data, (x, y) = _weighted(weight, x, y)
    prec = previous.prec + x.T @ x
    location = jnp.linalg.solve(prec, previous.prec @ previous.location + x.T @ y)
    residual, shift = y - x @ location, location - previous.location
    scale = previous.scale + residual.T @ residual + shift.T @ previous.prec @ shift
    scale = 0.5 * (scale + scale.T)
    new = MatrixNormalInverseWishart(location, prec, scale, previous.dof + num_data)
    log_evidence = new.log_normaliser() - previous.log_normaliser()
    return new, log_evidence - 0.5 * num_data * y.shape[1] * jnp.log(2 * jnp.pi)


def _weighted(weight: Array | None, *rows: Array) -> tuple[Array | int, list[Array]]:
    """The number of observations, and the rows times the square root of their weight."""
    if weight is None:
        return len(rows[0]), list(rows)
    root = jnp.sqrt(weight)
    scaled = [array * root.reshape(-1, *[1] * (array.ndim - 1)) for array in rows]
    return jnp.sum(weight), scaled


def output_order(target: Target, params: PyTree) -> Array:
    """Positions of each output's weights: (outputs, weights of one output).

    Found at random inputs, since a column of the data may be all zeros.
    """
    _, jacobian = linear_parts(target, params, _probes(target))
    owner = jnp.argmax(jnp.sum(jacobian**2, axis=0), axis=0)
    return jnp.argsort(owner, stable=True).reshape(jacobian.shape[1], -1)


def by_batches(
    target: Target, params: PyTree, update: Callable[..., tuple[PyTree, Array]], prior: PyTree
) -> tuple[PyTree, Array]:
    """The posterior after all rows, and the log-evidence; the posterior is the next batch's prior.

    `update(prior, jacobian, y, weight)` takes a batch; so no more than one's Jacobian is in memory.
    """
    assert target.data is not None
    columns, weights = target.likelihood.num_outputs, tree.size(params["network"])
    size = max(FEWEST_ROWS, JACOBIAN_SIZE // (columns * weights))

    def one(carry: tuple[PyTree, Array], batch: Batch) -> tuple[tuple[PyTree, Array], None]:
        offset, jacobian = linear_parts(target, params, batch.x)
        q, log_evidence = update(
            carry[0], jacobian, batch.y.astype(jnp.float64) - offset, batch.weight
        )
        return (q, carry[1] + log_evidence), None

    start = (prior, jnp.zeros((), jnp.float64))
    if len(target.data.y) <= size:
        return one(start, target.data)[0]
    return jax.lax.scan(one, start, in_chunks(target.data, size))[0]


def _is_learned(likelihood: Likelihood) -> TypeGuard[Gaussian]:
    """Whether the noise scale is unknown."""
    return isinstance(likelihood, Gaussian) and likelihood.noise_scale is None


def noise_root(likelihood: Likelihood) -> Array:
    """Cholesky factor of the known noise covariance."""
    if isinstance(likelihood, MultivariateGaussian):
        assert likelihood.root is not None
        return likelihood.root
    assert isinstance(likelihood, Gaussian)
    return jnp.diag(likelihood.std({}, jnp.float64))


def network_prior(target: Target, params: PyTree) -> tuple[Array, Array]:
    """Prior mean and precision matrix of the network's weights, as one vector."""
    assert target.prior is not None
    own = len(jax.tree.leaves(params["likelihood"]))  # these are the first leaves
    group = tuple(range(own, own + len(jax.tree.leaves(params["network"]))))
    mean = target.prior.broadcast(tree.double(params))[0]["network"]
    return tree.ravel(mean), target.prior.prec_blocks(params, (group,))[0]


def _probes(target: Target) -> PyTree:
    """Random inputs of the shape of the data; integer inputs are taken from the data."""
    assert target.data is not None

    def like(key: Array, leaf: Array) -> Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf[:PROBES]
        rows = min(PROBES, len(leaf))
        return jax.random.normal(key, (rows, *leaf.shape[1:]), leaf.dtype)

    leaves, treedef = jax.tree.flatten(target.data.x)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    return jax.tree.unflatten(treedef, list(map(like, keys, leaves)))


class Conjugate(Algorithm):
    """The exact posterior of linear regression, with known or unknown noise.

    >>> posterior = bl.fit(model, bl.Conjugate(), (x, y), seed=0)
    >>> np.asarray(posterior.family.mean_vector()).shape
    (4,)
    """

    name: ClassVar[str] = "conjugate"
    title: ClassVar[str] = "exact posterior of linear regression"
    capabilities: ClassVar[Capabilities] = Capabilities(
        needs_gradient=False,
        needs_gaussian_prior=True,
        needs_linear_model=True,
        takes_minibatches=False,
        init_is_result=True,
    )
    info_fields: ClassVar[InfoFields] = InfoFields(progress=("log_evidence",))
    auto_steps: ClassVar[int] = 1

    noise: str = hyper(
        "auto",
        "known, or its conjugate prior: normal-inverse-gamma (one column of y) or"
        " matrix-normal-inverse-wishart (several); auto: that of the likelihood",
        choices=NOISES,
    )
    noise_scale: float | None = hyper(
        None,
        "prior guess of the noise's standard deviation; None: that of each column of y",
        above=0,
        optional=True,
        real=True,
    )
    noise_dof: float | None = hyper(
        None,
        "number of rows the guess is worth, plus the columns of y, plus one; None: one row",
        above=0,
        optional=True,
        real=True,
    )

    def check(self, target: Target, params: PyTree) -> None:
        """Refuse a model that is not a linear regression with a conjugate prior."""
        likelihood = target.likelihood
        if isinstance(likelihood, MultivariateGaussian) and likelihood.refreshes:
            refuse(
                "likelihood",
                Shown("MultivariateGaussian()"),
                "have a conjugate prior: an inverse-Wishart independent of the weights is not",
                "Write Gaussian() for the matrix-normal inverse-Wishart, or use bl.HMC().",
            )
        if not isinstance(likelihood, Gaussian | MultivariateGaussian):
            refuse(
                "likelihood",
                Shown(type(likelihood).__name__),
                "be Gaussian for the exact posterior",
                "Use another algorithm, such as bl.HMC().",
            )
        columns, learned = likelihood.num_outputs, _is_learned(likelihood)
        if self.noise == "known" and learned:
            refuse("noise", self.noise, "suit the likelihood", "Write Gaussian(noise_scale=...).")
        if self.noise not in ("auto", "known") and not learned:
            refuse(
                "noise", self.noise, "suit the likelihood", "Write Gaussian() to infer the noise."
            )
        if self.noise == "normal-inverse-gamma" and columns > 1:
            refuse(
                "noise",
                self.noise,
                f"support the {columns} columns of y",
                'Write noise="matrix-normal-inverse-wishart".',
            )
        require_fixed_scale(
            target.prior, self.name, "bl.Laplace() is exact too if the noise is known."
        )
        if learned and self.noise_dof is not None and self.noise_dof <= columns - 1:
            refuse("noise_dof", self.noise_dof, f"be greater than {columns - 1}")
        self._check_linear(target, params, learned and columns > 1)

    def _check_linear(self, target: Target, params: PyTree, shares_features: bool) -> None:
        """Refuse a network that is not linear, or whose outputs have different features."""
        # At least in single precision: half precision rounds by more than the tolerance.
        halves = ("float16", "bfloat16")
        wide = tuple("float32" if d in halves else d for d in target.dtypes)
        target = dataclasses.replace(target, dtypes=wide)
        x = _probes(target)
        offset, jacobian = (np.asarray(part) for part in linear_parts(target, params, x))
        network = params["network"]
        for seed in (1, 2):
            weights = tree.normal_like(jax.random.key(seed), network)
            found = np.asarray(target.outputs({**params, "network": weights}, x))
            wanted = offset + jacobian @ np.asarray(tree.ravel(weights), np.float64)
            size = np.max(np.abs(wanted)) + 1e-30
            if not np.all(np.abs(found - wanted) <= TOLERANCE * size):
                refuse(
                    "network",
                    Shown("one that is not"),
                    "be linear in its weights for the exact posterior",
                    "Use bl.networks.MLP([]) (hidden=() in the estimators), or another algorithm.",
                )
        if not shares_features or isinstance(target.prior, ConjugatePrior):
            return
        shared = _has_equal_counts(jacobian)
        if shared:
            order = np.asarray(output_order(target, params))
            own = np.stack([jacobian[:, o, row] for o, row in enumerate(order)])
            prec = np.asarray(network_prior(target, params)[1])
            blocks = np.stack([prec[np.ix_(row, row)] for row in order])
            shared = np.allclose(own, own[:1]) and np.allclose(np.sum(own**2), np.sum(jacobian**2))
            shared = shared and np.allclose(blocks, blocks[:1])
            shared = shared and np.allclose(np.sum(blocks**2), np.sum(prec**2))
        if not shared:
            refuse(
                "network",
                Shown("one where they differ"),
                "have the same features and prior scales for each output, if the noise is unknown"
                " and y has several columns",
                "Use bl.networks.MLP([]), or fit one column at a time.",
            )

    def init(self, key: Array, target: Target, params: PyTree) -> ConjugateState:
        """The whole posterior."""
        if isinstance(target.prior, ConjugatePrior):  # the posterior of earlier data
            return self._unknown_noise(target, params, target.prior.exact, target.prior.order)
        mean, prec = network_prior(target, params)
        if not _is_learned(target.likelihood):
            root = noise_root(target.likelihood)

            def known(
                q: tuple[Array, Array], jacobian: Array, y: Array, weight: Array | None
            ) -> tuple[tuple[Array, Array], Array]:
                mean, prec, log_evidence = known_noise(*q, jacobian, y, root, weight)
                return (mean, prec), log_evidence

            (found, matrix), log_evidence = by_batches(target, params, known, (mean, prec))
            like = {**params, "network": tree.unraveler(params["network"])(found)}
            return ConjugateState(FullGaussian.from_prec(like, matrix), log_evidence)
        order = output_order(target, params)
        center = target.likelihood.center
        prior = self._prior(center, mean[order].T, prec[jnp.ix_(order[0], order[0])])
        return self._unknown_noise(target, params, prior, order)

    def _unknown_noise(
        self, target: Target, params: PyTree, prior: MatrixNormalInverseWishart, order: Array
    ) -> ConjugateState:
        """The posterior of weights and noise; `order` has the places of each output's weights."""

        def one(
            q: MatrixNormalInverseWishart, jacobian: Array, y: Array, weight: Array | None
        ) -> tuple[MatrixNormalInverseWishart, Array]:
            return update(q, jacobian[:, 0, order[0]], y, weight)

        exact, log_evidence = by_batches(target, params, one, prior)
        return ConjugateState(ConjugateFamily(exact, order, params), log_evidence)

    def _prior(
        self, center: Array | None, location: Array, prec: Array
    ) -> MatrixNormalInverseWishart:
        """The conjugate prior; `center` is the log standard deviation of y."""
        d = location.shape[1]
        dof = jnp.asarray(d + 2.0 if self.noise_dof is None else self.noise_dof, jnp.float64)
        guess = self.noise_scale
        if guess is None:
            assert center is not None
            std = jnp.exp(center)
        else:
            std = jnp.full(d, guess)
        # the mean of IW(scale, dof) if it has one, else the scale of one row
        scale = jnp.diag(std.astype(jnp.float64) ** 2) * jnp.where(dof > d + 1, dof - d - 1, 1.0)
        return MatrixNormalInverseWishart(location, prec, scale, dof)

    def step(
        self, key: Array, target: Target, state: ConjugateState, batch: Batch | None
    ) -> tuple[ConjugateState, ConjugateInfo]:
        """Nothing: `init` has done everything."""
        return state, ConjugateInfo(state.log_evidence)

    def objective(self, key: Array, target: Target, state: ConjugateState) -> dict[str, Array]:
        """The exact evidence, which is the lower bound of the exact posterior."""
        exact = state.log_evidence
        return {"elbo": exact, "objective": exact, "error": jnp.zeros((), jnp.float64)}

    def approximation(
        self, target: Target, state: ConjugateState, draws: PyTree | None = None
    ) -> Family:
        """The exact posterior."""
        return state.family


def _has_equal_counts(jacobian: np.ndarray) -> bool:
    """Whether all outputs have the same number of weights."""
    owner = np.argmax(np.sum(jacobian**2, axis=0), axis=0)
    counts = np.bincount(owner, minlength=jacobian.shape[1])
    return bool(np.all(counts == counts[0]))
