"""Bad input is refused in one sentence (argument, value, remedy), before anything is compiled."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import bayeslearn as bl
from bayeslearn.errors import ArgumentError, DataError

# A shape of its own, so that a program of the loop would have to be compiled, and be seen.
ROWS, COLUMNS = 11, 3
X = np.random.default_rng(0).normal(size=(ROWS, COLUMNS))
Y = np.random.default_rng(1).normal(size=ROWS)
LOOP = ("init_state", "init_state_from", "_steps", "draw", "evaluate", "log_joint")


def regression():
    return bl.Model(bl.networks.MLP([3]), bl.likelihoods.Gaussian())


def classification(classes=3):
    return bl.Model(bl.networks.MLP([3]), bl.likelihoods.Categorical(classes))


def with_nan(values, row=4):
    values = np.array(values)
    values[row] = np.nan
    return values


@pytest.fixture(scope="module", autouse=True)
def keys_are_compiled():
    """Making and folding keys are the only programs that run before the data are checked."""
    with jax.enable_x64(True):
        jax.random.fold_in(jax.random.key(0), 1)


def options(**given):
    return {"model": regression(), "algorithm": "map", "data": (X, Y), "seed": 0} | given


# What is refused before the network is touched: nothing at all is compiled.
AT_ONCE = {
    "nan in x": (
        options(data=(with_nan(X), Y)),
        "`x` must be finite, got NaN .*in 1 row.*row 4. Drop or fill",
    ),
    "infinite y": (
        options(data=(X, Y + np.inf)),
        "`y` must be finite, got NaN or infinity in 11 row",
    ),
    "y too short": (options(data=(X, Y[:5])), r"`y` must have as many rows as x \(11\), got 5"),
    "y a number": (options(data=(X, 3.0)), "`y` must have as many rows .*, got a single number"),
    "y a cube": (options(data=(X, np.ones((11, 2, 2)))), r"`y` must be .*\(11, 2, 2\)"),
    "ragged x": (
        options(data=([[1, 2], [3]], [1, 2])),
        "`x` must be a rectangular table, got rows",
    ),
    "ragged y": (options(data=([[1], [2]], [[1, 2], [3]])), "`y` must .*, got rows of unequal"),
    "empty x": (options(data=(np.ones((0, 3)), [])), r"`x` must have at least one row.*\(0, 3\)"),
    "text in x": (
        options(data=(pd.DataFrame({"a": Y, "b": ["u"] * ROWS}), Y)),
        "`x` must hold numbers, got dtype object. Encode text",
    ),
    "complex x": (options(data=(X + 1j, Y)), "`x` must hold numbers, got dtype complex128"),
    "text y": (options(data=(X, ["u"] * ROWS)), "`y` must hold numbers, got dtype <U1. Encode"),
    "x of two lengths": (
        options(data=({"a": X, "b": X[:5]}, Y)),
        "`x.b` must have 11 rows like x.a, got 5 rows",
    ),
    "label too large": (
        options(model=classification(), data=(X, np.arange(ROWS))),
        "`y` must hold only whole labels 0 to 2, got the label 3. Encode",
    ),
    "label negative": (
        options(model=classification(None), data=(X, np.arange(ROWS) - 1)),
        "`y` must .*, got the label -1",
    ),
    "label broken": (
        options(model=classification(), data=(X, np.full(ROWS, 0.5))),
        "`y` must .*, got the label 0.5",
    ),
    "one-hot labels": (
        options(model=classification(), data=(X, np.eye(ROWS)[:, :3])),
        r"`y` must be \(rows,\) of class labels, got shape \(11, 3\). Turn one-hot",
    ),
    "three labels for two": (
        options(
            model=bl.Model(bl.networks.MLP([3]), bl.likelihoods.Bernoulli()),
            data=(X, np.arange(ROWS) % 3),
        ),
        "`y` must .* 0 and 1, got the label 2. For more classes use",
    ),
    "zero steps": (options(num_steps=0), "`num_steps` must be .*at least 1, got 0"),
    "half a step": (options(num_steps=10.5), "`num_steps` must be a whole number.*got 10.5"),
    "steps in words": (options(num_steps="many"), "`num_steps` must be .*, got 'many'"),
    "flag for a count": (options(num_steps=True), "`num_steps` must be .*, got True"),
    "negative batch": (options(batch_size=-1), "`batch_size` must be .*at least 1, got -1"),
    "negative seed": (options(seed=-1), "`seed` must be .*at least 0, got -1"),
    "large seed": (options(seed=2**64), "`seed` must be .*at most 9223372036854775807, got 1844"),
    "seed of the wrong type": (options(seed="0"), "`seed` must be a whole number.*got '0'"),
    "steps for a sampler": (
        options(algorithm="hmc", num_steps=100),
        "`num_steps` must be left out for the sampler hmc, got 100. Set num_warmup",
    ),
    "batches for a sampler": (
        options(algorithm="nuts", batch_size=5),
        "`batch_size` must be left out for the sampler nuts, got 5. Samplers need all rows",
    ),
    "chains for a bound": (
        options(algorithm="bayes-by-backprop", num_chains=2),
        "`num_chains` must be left out: bayes-by-backprop is not a sampler, got 2",
    ),
    "zero chains": (options(algorithm="hmc", num_chains=0), "`num_chains` must be .*got 0"),
    "unknown algorithm": (
        options(algorithm="hcm"),
        r"`algorithm` must be one of 'map', .*'hmc'.*, got 'hcm'. Did you mean hmc\?",
    ),
    "a class": (options(algorithm=bl.HMC), r"`algorithm` must be an object.*Write bl.HMC\(\)"),
    "a number": (options(algorithm=3), "`algorithm` must be an algorithm, such as .*, got 3"),
    "no data": (options(data=None), r"`data` must be \(x, y\), got None"),
    "only x": (options(data=X), r"`data` must be \(x, y\), .*or an iterable.*got a ndarray"),
    "four tables": (options(data=(X, Y, Y, Y)), "`data` must be .*, got a tuple"),
    "negative weight": (options(data=(X, Y, -np.ones(ROWS))), "`weight` must hold one number from"),
    "no weight": (options(data=(X, Y, np.zeros(ROWS))), "`weight` must hold .*not all of them 0"),
    "weight too short": (options(data=(X, Y, np.ones(3))), "`weight` must hold .*of the 11 rows"),
    "an old keyword": (
        options(patience=5),
        r"`patience` has moved: write options=bl\.FitOptions\(",
    ),
    "another old keyword": (options(params={}), "`params` has moved: write init="),
    "no model": (options(model=bl.networks.MLP([3])), "`model` must be a bl.Model .*got a MLP"),
    "batches without a count": (
        options(data=iter([(X, Y)])),
        "`num_data` must be given when data is an iterator that can be read only once, got None",
    ),
    "no batch": (
        options(data=[], options=bl.FitOptions(num_data=5)),
        "`data` must give at least one batch.*without",
    ),
    "no pairs": (
        options(data=iter([1, 2, 3, 4]), options=bl.FitOptions(num_data=5)),
        r"`data` must be \(x, y\).*, got a int",
    ),
}


def refused(given, message):
    given = dict(given)
    arguments = [given.pop(name) for name in ("model", "algorithm", "data")]
    with pytest.raises(ArgumentError, match=message) as caught:
        bl.fit(*arguments, **given)
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith("`")
    assert said.endswith((".", ")", "?"))
    return said


@pytest.mark.parametrize("case", AT_ONCE)
def test_refused_at_once(case, compiles):
    given, message = AT_ONCE[case]
    with compiles() as seen:
        refused(given, message)
    assert not seen, seen


def bad_network(params, x):
    return params["v"] * x


def linear(params, x):
    return params["w"] @ x


def weights_for(rows, columns):
    return lambda: {"w": np.zeros((rows, columns), np.float32)}


def with_network(init, apply):
    return options(model=bl.Model((init, apply), bl.likelihoods.Gaussian()))


# What needs the network's shapes: the network is initialised, the loop is not compiled.
WITH_THE_NETWORK = {
    "batch larger than data": (
        options(batch_size=100),
        r"`batch_size` must be at most the number of rows \(11\), got 100",
    ),
    "wrong number of outputs": (
        with_network(weights_for(2, 3), linear),
        r"`network` must give 1 output\(s\).*as Gaussian needs for this y, got .*\(2,\)",
    ),
    "network of other inputs": (
        with_network(weights_for(1, 7), linear),
        r"`network` must accept one example of shape \(3,\), but it failed",
    ),
    "broken network": (
        with_network(weights_for(1, 3), bad_network),
        "`network` must accept one example .*, but it failed: KeyError",
    ),
    "nothing to learn": (
        with_network(lambda: {}, lambda params, x: x[:1]),
        "`params` must hold at least one array.*nothing to learn",
    ),
    "whole-number weights": (
        with_network(lambda: {"w": np.ones((1, 3), int)}, linear),
        "`params` must hold floating-point arrays only, got w of type int",
    ),
    "start of another structure": (
        options(init={"w": np.ones(3)}),
        "`init` must have the structure .*, got the tree",
    ),
    "batches for a sampler": (
        options(algorithm="hmc", data=[(X, Y)], options=bl.FitOptions(num_data=ROWS)),
        "`data` must be arrays .*hmc needs all rows in every step, got an iterable",
    ),
    "count beside arrays": (
        options(options=bl.FitOptions(num_data=ROWS)),
        "`num_data` must be left out when data are arrays, got 11",
    ),
    "prior for another network": (
        options(
            model=bl.Model(
                bl.networks.MLP([3]), bl.likelihoods.Gaussian(), bl.priors.Normal(scale={"no": 1.0})
            )
        ),
        r"`scale` must cover every leaf of the network.*Add \"\*\"",
    ),
}


@pytest.mark.parametrize("case", WITH_THE_NETWORK)
def test_refused_before_the_loop_is_compiled(case, compiles):
    given, message = WITH_THE_NETWORK[case]
    with compiles() as seen:
        refused(given, message)
    assert not [name for name in seen if any(f"({part})" in name for part in LOOP)], seen


def test_a_numpy_batch_size_larger_than_the_data():
    refused(options(batch_size=np.int64(100), num_steps=5), "`batch_size` must be at most")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bl.Model(bl.networks.MLP, bl.likelihoods.Gaussian()), "`network` .*not a class"),
        (lambda: bl.Model(3, bl.likelihoods.Gaussian()), "`network` must be .*, got a int"),
        (lambda: bl.Model(bl.networks.MLP(), "gaussian"), "`likelihood` must be .*'gaussian'"),
        (lambda: bl.Model(bl.networks.MLP(), bl.likelihoods.Gaussian(), 1.0), "`prior` must be"),
        (
            lambda: bl.Model(bl.networks.MLP(), bl.likelihoods.Gaussian(), dtype="int32"),
            "`dtype` must be a floating-point type.*got 'int32'",
        ),
        (
            lambda: bl.Model(bl.networks.MLP(), bl.likelihoods.Gaussian(), dtype="f99"),
            "`dtype` must be a floating-point type.*got 'f99'",
        ),
        (lambda: bl.likelihoods.Gaussian(-0.1), "`noise_scale` must be positive .*-0.1. Leave it"),
        (lambda: bl.likelihoods.Gaussian("a"), "`noise_scale` must be a positive number, got 'a'"),
        (lambda: bl.likelihoods.Gaussian(noise_prior_scale=0), "`noise_prior_scale` must be posit"),
        (lambda: bl.likelihoods.Categorical(1), "`num_classes` must be .*at least 2, got 1"),
        (lambda: bl.networks.MLP([5, 0]), r"`hidden` must be positive layer sizes.*got \[5, 0\]"),
        (lambda: bl.networks.MLP([5], "tahn"), "`activation` must be .*, got 'tahn'"),
        (lambda: bl.HMC(step_size=-1.0), r"`step_size` must be greater than 0, got -1\.0"),
        (lambda: bl.HMC(mass_matrix="full"), "`mass_matrix` must be one of 'auto', .*'full'"),
        (lambda: bl.NUTS(max_doublings=60), "`max_doublings` must be at most 20, got 60"),
        (lambda: bl.HMC(num_samples=0), "`num_samples` must be at least 1, got 0"),
        (lambda: bl.MAP(learning_rate="fast"), "`learning_rate` must be a number, got 'fast'"),
        (lambda: bl.FitOptions(patience=0), "`patience` must be .*got 0"),
        (lambda: bl.FitOptions(eval_every=0), "`eval_every` must be .*got 0"),
        (lambda: bl.FitOptions(remat=1), "`remat` must be True or False, got 1"),
        (lambda: bl.MAP(optimizer="adamm"), "`optimizer` must be .*, got 'adamm'"),
    ],
)
def test_bad_parts_are_refused_where_they_are_written(make, message, compiles):
    with compiles() as seen, pytest.raises(ArgumentError, match=message):
        make()
    assert not seen


@pytest.fixture(scope="module")
def posterior():
    return bl.fit(regression(), "map", (X[:-1], Y[:-1]), seed=0, num_steps=5)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda p: p.predict(X[:, :2]), r"`x` must have rows of shape \(3,\), .*got \(11, 2\)"),
        (lambda p: p.predict(X[0]), r"`x` must have rows of shape \(3,\).*got \(3,\)"),
        (lambda p: p.predict({"a": X}), "`x` must be like in fitting"),
        (lambda p: p.predict(with_nan(X)), "`x` must be finite, got NaN"),
        (lambda p: p.predict(X, num_samples=0), "`num_samples` must be .*at least 1, got 0"),
        (lambda p: p.predict(X, num_samples=1.5), "`num_samples` must be a whole .*got 1.5"),
        (lambda p: p.predict(X, seed="a"), "`seed` must be a whole number.*got 'a'"),
        (lambda p: p.predict(X).interval(95), "`level` must be between 0 and 1, .*0.9, got 95"),
        (lambda p: p.predict(X).interval(1.0), "`level` must be between 0 and 1, .*got 1.0"),
        (lambda p: p.predict(X).interval("a"), "`level` must be between 0 and 1, .*got 'a'"),
        (lambda p: p.predict(X).quantile(0.0), "`q` must be between 0 and 1, got 0.0"),
        (lambda p: p.predict(X).log_prob(Y[:3]), r"`y` must have as many rows as x \(11\)"),
        (lambda p: p.predict(X).cdf(Y[:3]), r"`y` must have as many rows as x \(11\), got 3"),
        (lambda p: p.predict(X).log_prob(np.ones((11, 2))), r"`y` must have 1 column\(s\)"),
        (lambda p: p.predict(X).log_prob(with_nan(Y)), "`y` must be finite, got NaN"),
        (lambda p: p.summary(level=0.0), "`level` must be between 0 and 1, .*got 0.0"),
    ],
)
def test_bad_questions_to_a_posterior(posterior, ask, message):
    with pytest.raises(ArgumentError, match=message):
        ask(posterior)


def test_bad_batches_in_the_middle_of_a_run():
    def run(bad):
        data = iter([(X[:5], Y[:5]), bad])
        bl.fit(regression(), "map", data, seed=0, num_steps=5, options=bl.FitOptions(num_data=ROWS))

    for bad, message in (
        (3, "gave a int, not a pair"),
        ((X, Y), "a batch of 11 inputs and 11 observations; .*at most 5 rows"),
        ((X[:5, :2], Y[:5]), r"rows of shape \(2,\), not \(3,\)"),
    ):
        with pytest.raises(DataError, match=message):
            run(bad)


def test_frames_of_numbers_and_flags_are_numbers():
    """Pandas gives such a frame as objects."""
    frame = pd.DataFrame({"a": Y, "b": Y > 0})
    assert frame.to_numpy().dtype == object
    target, _ = regression().bind((frame, Y), jax.random.key(0))
    np.testing.assert_array_equal(target.data.x[:, 1], (Y > 0).astype(np.float32))


def test_a_target_brings_its_own_data_and_needs_a_start():
    target = bl.Target.from_log_density(lambda w: -jnp.sum(w**2), jnp.ones(2))
    refused(options(model=target), "`data` must be left out: a Target has its own")
    bound, _ = regression().bind((X, Y), jax.random.key(0))
    refused(options(model=bound, data=None), "`init` must be given to start from")
