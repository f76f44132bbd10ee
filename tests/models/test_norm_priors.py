"""Priors of gains of norms and of embeddings."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayeslearn as bl


class Blocks(eqx.Module):
    """Norms, an embedding and a dense layer of Equinox."""

    embedding: eqx.nn.Embedding
    layer: eqx.nn.LayerNorm
    plane: eqx.nn.LayerNorm
    group: eqx.nn.GroupNorm
    dense: eqx.nn.Linear

    def __init__(self):
        key = jax.random.key(0)
        self.embedding = eqx.nn.Embedding(50, 4, key=key)
        self.layer, self.plane = eqx.nn.LayerNorm(4), eqx.nn.LayerNorm((2, 4))
        self.group, self.dense = eqx.nn.GroupNorm(2, 4), eqx.nn.Linear(4, 3, key=key)


FLAX_AND_KERAS = {
    "LayerNorm_0": {"scale": jnp.ones(4), "bias": jnp.zeros(4)},
    "batch_normalization": {"gamma": jnp.ones(4), "beta": jnp.zeros(4)},
    "Embed_0": {"embedding": jnp.zeros((50, 4))},
    "Dense_0": {"kernel": jnp.zeros((4, 3))},
}


@pytest.mark.parametrize("prior", [bl.priors.Normal.fan_in(2.0), bl.priors.Normal.by_size()])
def test_gains_of_norms_are_around_one(prior, x64):
    """As they begin: a mean of 0 would have them switch their layer off."""
    is_large = isinstance(prior.scale, type(bl.priors.Normal.fan_in().scale))
    gain, matrix, norm = (2.0, 1.0, 0.5) if is_large else (1.0, 1.0, 1.0)
    blocks = prior.bind(Blocks())
    for part in (blocks.mean.layer, blocks.mean.plane, blocks.mean.group):
        assert (float(part.weight), float(part.bias)) == (1.0, 0.0)
    assert float(blocks.mean.dense.weight) == float(blocks.mean.embedding.weight) == 0.0
    named = prior.bind(FLAX_AND_KERAS)
    assert [float(m) for m in jax.tree.leaves(named.mean)] == [0.0, 0.0, 0.0, 1.0, 0.0, 1.0]
    for leaf, scale in (
        (blocks.prec.layer.weight, norm),
        (blocks.prec.plane.weight, norm),
        (blocks.prec.plane.bias, gain),
        (blocks.prec.embedding.weight, gain),  # one row at a time: a fan-in of one
        (blocks.prec.dense.weight, matrix),
        (named.prec["LayerNorm_0"]["scale"], norm),
        (named.prec["batch_normalization"]["beta"], gain),
        (named.prec["Embed_0"]["embedding"], gain),
        (named.prec["Dense_0"]["kernel"], matrix),
    ):
        np.testing.assert_allclose(float(leaf) ** -0.5, scale)


def test_a_mean_of_ones_own_stays(x64):
    assert all(
        float(mean) == 0.25
        for mean in jax.tree.leaves(bl.priors.Normal.fan_in(mean=0.25).bind(Blocks()).mean)
    )
