"""The scikit-learn estimators: its own checks, its tools, and answers in the user's units."""

from __future__ import annotations

import dataclasses
import itertools
import pickle

import jax
import jax.numpy as jnp
import joblib
import numpy as np
import pandas as pd
import problems
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

import bayeslearn as bl
from bayeslearn.algorithms.vadam import batch_gradient
from bayeslearn.algorithms.vogn import gradient_moments
from bayeslearn.data.batches import take
from bayeslearn.data.scaling import Scaling
from bayeslearn.errors import ArgumentError
from bayeslearn.gradients.curvature import blocks, diagonal
from bayeslearn.storage import folders
from bayeslearn.tabular import persistence

QUICK = {"hidden": (8,), "method": "map", "num_steps": 300, "random_state": 0}
SMALL = {"hidden": (8,), "method": "bayes-by-backprop", "num_steps": 200, "random_state": 0}


KINDS = (bl.BayesianNNRegressor, bl.BayesianNNClassifier)
# The checks whose outcome depends on the method; the others check what all methods share.
BY_METHOD = {
    "check_classifiers_train",
    "check_dict_unchanged",
    "check_estimators_partial_fit_n_features",
    "check_estimators_pickle",
    "check_fit2d_1sample",
    "check_fit_idempotent",
    "check_methods_subset_invariance",
    "check_regressors_train",
    "check_sample_weight_equivalence_on_dense_data",
}
OTHERS = ("bayes-by-backprop", "mc-dropout", "hmc", "ngvi")  # one of each kind


def passes_all_checks(estimator):
    """Every check of scikit-learn, none expected to fail; some need packages that are not here."""
    results = check_estimator(estimator, on_skip=None)
    assert len(results) > 40
    assert sum(check["status"] == "skipped" for check in results) < 5
    assert {check["status"] for check in results} <= {"passed", "skipped"}


@pytest.mark.parametrize("cls", KINDS)
def test_scikit_learn_checks_of_map(cls):
    passes_all_checks(cls(hidden=(8,), method="map", num_steps=400))


def passes_checks_by_method(estimator):
    done = set()
    for given, check in estimator_checks_generator(estimator):
        check_name = check.func.__name__ if hasattr(check.func, "__name__") else ""
        if check_name in BY_METHOD - done:
            check(given)
            done.add(check_name)
    assert len(done) == len(BY_METHOD) - 1  # one is for the other kind


@pytest.mark.slow(reason="scikit-learn fits some two hundred times")
@pytest.mark.parametrize("cls", KINDS)
def test_scikit_learn_checks_of_vogn(cls):
    passes_all_checks(cls(hidden=(8,), method=bl.VOGN(num_draws=1), num_steps=300))


@pytest.mark.slow(reason="scikit-learn fits some two hundred times")
def test_scikit_learn_checks_of_the_exact_posterior():
    passes_all_checks(bl.BayesianNNRegressor(hidden=(), method="conjugate"))


@pytest.mark.slow(reason="scikit-learn fits many times")
@pytest.mark.filterwarnings("ignore::bayeslearn.MixingWarning")
@pytest.mark.parametrize(("name", "cls"), zip(OTHERS, itertools.cycle(KINDS), strict=False))
def test_scikit_learn_checks_of(name, cls):
    steps = "auto" if bl.ALGORITHMS[name].capabilities.is_sampler else 300
    passes_checks_by_method(cls(hidden=(5,), method=problems.quick(name), num_steps=steps))


@pytest.fixture(scope="module")
def table():
    x, y = load_diabetes(return_X_y=True)
    return train_test_split(x, y, random_state=0)


@pytest.fixture(scope="module")
def fitted(table):
    """With the defaults of a method that can go on learning."""
    x, _, y, _ = table
    return bl.BayesianNNRegressor(method="bayes-by-backprop", random_state=0).fit(x, y)


@pytest.fixture(scope="module")
def flowers():
    x, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    classifier = bl.BayesianNNClassifier(**SMALL).fit(x, names)
    return x, names, classifier


# Regression


def test_defaults_are_calibrated_on_diabetes(fitted, table):
    """90 % intervals on 111 rows: coverage of a calibrated model has standard error 0.028."""
    _, x, _, y = table
    lower, upper = fitted.predict_interval(x, level=0.9)
    assert 0.8 <= np.mean((lower <= y) & (y <= upper)) <= 0.98
    assert fitted.score(x, y) > 0.3  # least squares has 0.36 on this split


def test_uncertainties_add_up_in_units_of_y(fitted, table):
    _, x, _, y = table
    mean, std = fitted.predict(x, return_std=True)
    parts = fitted.predict_uncertainty(x)
    np.testing.assert_allclose(np.hypot(parts.epistemic, parts.aleatoric), std)
    np.testing.assert_allclose(mean, fitted.predict(x))
    np.testing.assert_allclose(np.mean((y - mean) ** 2 / std**2), 1.0, atol=0.5)


def test_samples_have_the_predictive_moments(fitted, table):
    _, x, _, _ = table
    mean, std = fitted.predict(x[:3], return_std=True)
    drawn = fitted.sample_y(x[:3], 4000, random_state=1)
    assert drawn.shape == (3, 4000)
    # Of the mean of draws from 256 weights: 4 standard errors fail once in 5000 runs.
    error = np.sqrt(std**2 / 4000 + fitted.predict_uncertainty(x[:3]).epistemic ** 2 / 256)
    assert np.all(np.abs(drawn.mean(axis=1) - mean) < 4 * error)
    np.testing.assert_allclose(drawn.std(axis=1), std, rtol=0.1)
    np.testing.assert_array_equal(drawn, fitted.sample_y(x[:3], 4000, random_state=1))


def test_log_likelihood_is_in_the_units_of_y(fitted, table):
    """The mixture of Gaussians by hand: means and noise of each draw, scaled back."""
    _, x, _, y = table
    posterior = fitted.posterior_
    draws = posterior.family.sample(jax.random.key(posterior.seed), 256)
    scaled = fitted.scaling_.apply(x)
    first, last = (
        {k: np.asarray(getattr(layer, k), np.float64) for k in ("weight", "bias")}
        for layer in draws["network"]["layers"]
    )
    hidden = np.tanh(np.einsum("shd,nd->snh", first["weight"], scaled) + first["bias"][:, None])
    means = np.einsum("soh,snh->sno", last["weight"], hidden) + last["bias"][:, None]
    means = means[:, :, 0] * fitted.y_scaling_.scale + fitted.y_scaling_.mean
    log_noise = np.asarray(draws["likelihood"]["log_noise_scale"], np.float64)
    noise = np.exp(log_noise) * fitted.y_scaling_.scale
    density = np.exp(-0.5 * ((y - means) / noise) ** 2) / np.sqrt(2 * np.pi) / noise
    by_hand = np.mean(np.log(np.mean(density, axis=0)))
    np.testing.assert_allclose(fitted.log_likelihood(x, y), by_hand, rtol=1e-9)


@pytest.mark.slow(reason="two fits with several starts")
def test_units_do_not_matter(table):
    x, x_new, y, y_new = table
    factors = 10.0 ** np.linspace(-8, 8, x.shape[1])
    plain = bl.BayesianNNRegressor(**SMALL).fit(x, y)
    scaled = bl.BayesianNNRegressor(**SMALL).fit(x * factors + 3 * factors, 1e6 * y - 5e7)
    score = scaled.score(x_new * factors + 3 * factors, 1e6 * y_new - 5e7)
    # Rounding makes other paths through the same optimisation.
    np.testing.assert_allclose(score, plain.score(x_new, y_new), atol=0.01)
    np.testing.assert_allclose(
        scaled.log_likelihood(x_new * factors + 3 * factors, 1e6 * y_new - 5e7),
        plain.log_likelihood(x_new, y_new) - np.log(1e6),
        atol=0.01,
    )


def test_scaling_survives_constant_and_extreme_columns():
    table = np.array(
        [[5.0, 1e8, 1e-300, 0.1], [5.0, 1e8 + 1, 3e-300, 0.1], [5.0, 1e8, 2e-300, 0.1]]
    )
    scaling = Scaling.of(table, np.ones(3))
    scaled = scaling.apply(table)
    np.testing.assert_allclose(scaled[:, [0, 3]], 0.0, atol=1e-15)
    np.testing.assert_allclose(scaled[:, [1, 2]].std(axis=0), 1.0)
    np.testing.assert_allclose(scaling.undo(scaled), table)


def test_several_targets_and_data_frames():
    x, y = problems.wiggle(rows=40)
    frame = pd.DataFrame({"position": x[:, 0], "flag": x[:, 0] > 0})
    both = np.column_stack([y, 1000.0 - 50.0 * y])
    regressor = bl.BayesianNNRegressor(**QUICK).fit(frame, both)
    assert list(regressor.feature_names_in_) == ["position", "flag"]
    mean, std = regressor.predict(frame, return_std=True)
    assert mean.shape == std.shape == both.shape
    assert regressor.sample_y(frame, 5, random_state=0).shape == (40, 2, 5)
    assert regressor.score(frame, both) > 0.8
    with pytest.raises(ValueError, match="feature names"):
        regressor.predict(frame[["flag", "position"]])


@pytest.mark.parametrize("noise", [0.2, "heteroscedastic"])
def test_noise_is_in_units_of_y(noise):
    x, y = problems.wiggle()
    regressor = bl.BayesianNNRegressor(**QUICK, noise=100 * noise if noise == 0.2 else noise)
    aleatoric = regressor.fit(x, 100 * y).predict_uncertainty(x).aleatoric
    if noise == 0.2:
        np.testing.assert_allclose(aleatoric, 20.0)
    else:
        assert 5 < np.median(aleatoric) < 40
        assert np.ptp(aleatoric) > 1


# Weights


def test_a_weight_is_a_repeated_row_and_zero_is_none():
    x, y = problems.wiggle(rows=30)
    counts = np.random.default_rng(0).integers(0, 4, size=30)
    make = lambda: bl.BayesianNNRegressor(**SMALL)  # noqa: E731
    repeated = make().fit(np.repeat(x, counts, axis=0), np.repeat(y, counts))
    weighted = make().fit(x, y, sample_weight=counts)
    shuffled = make().fit(x[::-1], y[::-1], sample_weight=counts[::-1])
    for other in (weighted, shuffled):
        np.testing.assert_array_equal(repeated.predict(x), other.predict(x))


def test_weighted_rows_teach_what_repeated_ones_do(x64):
    """Beneath the merging: the same numbers from rows with weights and from copies of them."""
    weighted, repeated = weighted_and_repeated()
    params, key = repeated.start, jax.random.key(1)

    def agree(function, **tolerance):
        found = [function(target) for target in (weighted, repeated)]
        for a, b in zip(*map(jax.tree.leaves, found), strict=True):
            np.testing.assert_allclose(a, b, **(tolerance or {"rtol": 1e-9}))

    agree(lambda target: target.log_joint(params))
    agree(lambda target: gradient_moments(target, params, target.data))
    for kind in ("gauss-newton", "squares", "hessian"):
        agree(lambda target, kind=kind: diagonal(key, target, params, target.data, kind))
    groups = (tuple(range(len(jax.tree.leaves(params)))),)
    agree(lambda target: blocks(key, target, params, target.data, groups, "gauss-newton")[0])

    def squares_by_signs(target):
        keys = jax.random.split(key, 4000)
        found = jax.lax.map(
            lambda k: batch_gradient(k, target, params, target.data, "signs")[2],
            keys,
            batch_size=500,
        )
        return jax.tree.map(lambda s: jnp.mean(s, axis=0), found)

    # Squares of Gaussians: the difference of two means of 4000 has relative error 0.032.
    agree(squares_by_signs, rtol=0.13)


def test_minibatches_of_weighted_rows_have_no_bias(x64):
    weighted, _ = weighted_and_repeated()
    order = jnp.arange(12)
    parts = [
        weighted.scaled_log_likelihood(weighted.start, take(weighted.data, order, i, 4))
        for i in range(3)
    ]
    whole = weighted.scaled_log_likelihood(weighted.start)
    np.testing.assert_allclose(np.mean(parts), whole, rtol=1e-9)


def weighted_and_repeated():
    x, y = problems.wiggle(rows=12)
    counts = np.where(np.arange(12) % 3, 2, 3)
    model = bl.Model(bl.networks.MLP([3]), bl.likelihoods.Gaussian(), dtype="float64")
    with jax.enable_x64(True):
        whole = (np.repeat(x, counts, axis=0), np.repeat(y, counts))
        repeated, start = model.bind(whole, jax.random.key(0))
        weighted = repeated.with_data(repeated.batch((x, y[:, None]), counts))
    return [dataclasses.replace(target, start=start) for target in (weighted, repeated)]


def test_the_exact_posterior_weighs_rows():
    x, y = problems.wiggle(rows=30)
    counts = np.random.default_rng(0).integers(1, 4, size=30)
    options = {"hidden": (), "method": "conjugate", "random_state": 0}
    # Weights that are no whole numbers, to a sum of which they come back.
    half = bl.BayesianNNRegressor(**options).fit(
        np.concatenate([x, x]),
        np.concatenate([y, y]),
        sample_weight=np.concatenate([0.25 * counts, 0.75 * counts]),
    )
    whole = bl.BayesianNNRegressor(**options).fit(
        np.repeat(x, counts, axis=0), np.repeat(y, counts)
    )
    for a, b in zip(half.predict(x, True), whole.predict(x, True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    np.testing.assert_allclose(half.posterior_.elbo, whole.posterior_.elbo, rtol=1e-9)


# Classification


def test_string_classes(flowers):
    x, names, classifier = flowers
    assert list(classifier.classes_) == ["setosa", "versicolor", "virginica"]
    assert classifier.score(x, names) > 0.9
    probs = classifier.predict_proba(x)
    np.testing.assert_allclose(probs.sum(axis=1), 1.0)
    index = np.searchsorted(classifier.classes_, names)
    by_hand = np.mean(np.log(probs[np.arange(len(x)), index]))
    np.testing.assert_allclose(classifier.log_likelihood(x, names), by_hand, rtol=1e-9)
    parts = classifier.predict_uncertainty(x)
    entropy = -np.sum(probs * np.log(probs), axis=1)
    np.testing.assert_allclose(parts.epistemic + parts.aleatoric, entropy, atol=1e-9)
    drawn = classifier.sample_y(x[:2], 500, random_state=0)
    assert set(drawn[0]) <= set(classifier.classes_)
    assert np.mean(drawn[0] == "setosa") == pytest.approx(probs[0, 0], abs=0.08)


def test_two_classes_on_an_unscaled_table():
    x, y = load_breast_cancer(return_X_y=True)
    x, x_new, y, y_new = train_test_split(x, y, random_state=0)
    classifier = bl.BayesianNNClassifier(**QUICK).fit(x, y)
    assert classifier.score(x_new, y_new) > 0.93


def test_labels_of_rows_that_do_not_count_are_not_there():
    x, y = problems.two_classes(rows=30)
    y = np.where(np.arange(30) < 3, 7, y)
    classifier = bl.BayesianNNClassifier(**QUICK)
    assert list(classifier.fit(x, y, sample_weight=y != 7).classes_) == [0, 1]


# More rows


def test_a_linear_method_needs_no_hidden():
    x, y = problems.wiggle(rows=30)
    regressor = bl.BayesianNNRegressor(method="conjugate", random_state=0).fit(x, y)
    assert regressor.chosen_["hidden"] == ()


def test_an_unknown_method_is_answered_with_the_nearest():
    x, y = problems.wiggle(rows=30)
    for name, near in (("Laplace", "laplace"), ("bayes_by_backprop", "bayes-by-backprop")):
        with pytest.raises(ArgumentError, match=f"`method` .*'auto'.* Did you mean {near}"):
            bl.BayesianNNRegressor(method=name).fit(x, y)


def test_partial_fit_is_the_sequential_posterior():
    """The second call is exactly what `Posterior.update` makes of the rows."""
    x, y = problems.wiggle(rows=60)
    regressor = bl.BayesianNNRegressor(**SMALL).partial_fit(x[:30], y[:30])
    before, scaling = regressor.posterior_, regressor.y_scaling_
    regressor.partial_fit(x[30:], y[30:])
    assert regressor.y_scaling_ is scaling
    assert "The prior is the q that" in regressor.posterior_.notes[0]
    by_hand = before.update((x[30:], y[30:]), num_steps=200)
    first, found, wanted = (
        posterior.predict(x).mean for posterior in (before, regressor.posterior_, by_hand)
    )
    # Another order of rows rounds otherwise in single precision.
    np.testing.assert_allclose(found, wanted, atol=1e-3)
    assert np.max(np.abs(found - first)) > 0.05


def test_held_out_rows_of_an_update_are_in_the_units_of_the_data():
    """Their log-likelihood is that of the rows as the estimator sees them, scaled."""
    x, y = problems.wiggle(rows=60)
    options = {**SMALL, "method": "vogn", "num_steps": 40, "validation_fraction": 0.2}
    regressor = bl.BayesianNNRegressor(**options).partial_fit(100.0 * x[:30], 1e4 + 100.0 * y[:30])
    before = regressor.posterior_
    regressor.partial_fit(100.0 * x[30:], 1e4 + 100.0 * y[30:])
    assert np.all(regressor.trace_["eval_validation"] > -10)
    again = before.update(
        (100.0 * x[30:50], 1e4 + 100.0 * y[30:50]),
        validation=(100.0 * x[50:], 1e4 + 100.0 * y[50:]),
        num_steps=40,
    )
    assert np.all(again.trace["eval_validation"] > -10)


def test_the_exact_posterior_in_two_parts_is_that_of_the_whole():
    x, y = problems.wiggle(rows=40)
    x, y = np.concatenate([x, x]), np.concatenate([y, y])  # so that both halves scale alike
    options = {"hidden": (), "method": "conjugate", "random_state": 0}
    parts = (
        bl.BayesianNNRegressor(**options).partial_fit(x[:40], y[:40]).partial_fit(x[40:], y[40:])
    )
    whole = bl.BayesianNNRegressor(**options).fit(x, y)
    for a, b in zip(parts.predict(x, True), whole.predict(x, True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_partial_fit_learns_of_classes_in_advance():
    x, y = problems.two_classes(rows=60)
    order = np.argsort(y, kind="stable")
    x, y = x[order], y[order]
    classifier = bl.BayesianNNClassifier(**SMALL)
    classifier.partial_fit(x[:20], y[:20], classes=[0, 1])
    assert set(y[:20]) == {0}
    classifier.partial_fit(x[20:], y[20:])
    assert classifier.score(x, y) > 0.7  # at best 0.86, of which rows of one class alone give 0.57
    with pytest.raises(ArgumentError, match=r"hold only the labels \[0, 1\], got the label 2"):
        classifier.partial_fit(x, y + 1)
    with pytest.raises(ArgumentError, match="those of the first call"):
        classifier.partial_fit(x, y, classes=[0, 1, 2])


def test_a_point_cannot_go_on():
    with pytest.raises(AttributeError):
        bl.BayesianNNRegressor(method="map").partial_fit
    assert not hasattr(bl.BayesianNNRegressor(method=bl.MAP()), "partial_fit")


# The tools of scikit-learn


def test_pipeline_grid_and_cross_validation_compile_once(compiles):
    x, y = problems.wiggle(rows=62)
    pipeline = make_pipeline(StandardScaler(), bl.BayesianNNRegressor(**QUICK))
    scores = cross_val_score(pipeline, x, y, cv=3, error_score="raise")
    assert scores.mean() > 0.5  # with 41 rows; noise leaves 0.92
    with compiles() as seen:
        grid = GridSearchCV(
            pipeline,
            {"bayesiannnregressor__prior_scale": [0.01, 1.0]},
            cv=3,
            error_score="raise",
        ).fit(x[:-1], y[:-1])
    assert grid.best_params_ == {"bayesiannnregressor__prior_scale": 1.0}
    # The refit on all rows has another size.
    with compiles() as again:
        cross_val_score(pipeline.set_params(bayesiannnregressor__prior_scale=0.5), x, y, cv=3)
    assert not [name for name in again if "_steps" in name or "_evaluate" in name]
    assert len([name for name in seen if "_steps" in name]) <= 1


def test_clones_pickles_and_jobs(fitted, table, flowers, tmp_path):
    _, x, _, _ = table
    assert clone(fitted).get_params() == fitted.get_params()
    stored = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(stored.predict(x, True), fitted.predict(x, True))
    assert len(pickle.dumps(fitted)) < 300_000
    assert len(stored.posterior_.target.data.y) == 0  # the training rows are not stored
    joblib.dump(flowers[2], tmp_path / "flowers")
    loaded = joblib.load(tmp_path / "flowers")
    np.testing.assert_array_equal(loaded.predict(flowers[0]), flowers[2].predict(flowers[0]))
    np.testing.assert_array_equal(loaded.classes_, flowers[2].classes_)


def test_saved_estimators(fitted, table, flowers, tmp_path):
    """Arrays and a description: the same to the bit, whatever the labels are called."""
    _, x, _, y = table
    fitted.save(tmp_path / "fitted")
    loaded = persistence.load(tmp_path / "fitted")
    assert loaded.get_params() == fitted.get_params()
    assert vars(loaded).keys() == vars(fitted).keys()
    np.testing.assert_array_equal(loaded.predict(x, True), fitted.predict(x, True))
    assert loaded.log_likelihood(x, y) == fitted.log_likelihood(x, y)
    flowers[2].save(tmp_path / "flowers")
    loaded = persistence.load(tmp_path / "flowers")
    np.testing.assert_array_equal(loaded.predict(flowers[0]), flowers[2].predict(flowers[0]))
    assert loaded.classes_.dtype == flowers[2].classes_.dtype
    with pytest.raises(bl.StorageError, match="it exists"):
        fitted.save(tmp_path / "fitted")
    fitted.posterior_.save(tmp_path / "posterior")
    with pytest.raises(bl.StorageError, match="a bare posterior"):
        persistence.load(tmp_path / "posterior")
    assert bl.load(tmp_path / "fitted").elbo == fitted.posterior_.elbo


def test_saved_settings_that_are_objects(tmp_path):
    """An algorithm, columns of y, a data frame and a random state; what fails names the folder."""
    x = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 2)), columns=["a", "b"])
    regressor = bl.BayesianNNRegressor(
        (4,), method=bl.MAP(learning_rate=0.02), num_steps=20, random_state=np.random.RandomState(0)
    ).fit(x, np.stack([x["a"], x["b"]], axis=1))
    regressor.save(tmp_path / "run")
    loaded = persistence.load(tmp_path / "run")
    assert loaded.method == regressor.method
    assert loaded.random_state is None
    assert list(loaded.feature_names_in_) == ["a", "b"]
    np.testing.assert_array_equal(loaded.predict(x), regressor.predict(x))
    with pytest.raises(NotFittedError):
        clone(regressor).save(tmp_path / "other")
    arrays, description = folders.read_folder(tmp_path / "run")
    parts = description["owner"]["dict"]
    description["owner"]["dict"] = [pair for pair in parts if pair[0] != "class"]
    folders.write_folder(tmp_path / "odd", arrays, description)
    with pytest.raises(bl.StorageError, match="does not make an estimator"):
        persistence.load(tmp_path / "odd")


def test_pickled_estimators_go_on_learning(fitted, table):
    x, _, y, _ = table
    stored = pickle.loads(pickle.dumps(fitted)).set_params(num_steps=20)
    stored.partial_fit(x[:40], y[:40])
    assert "The prior is the q" in stored.posterior_.notes[0]


@pytest.mark.filterwarnings("ignore::bayeslearn.MixingWarning")  # of chains this short
def test_pickled_chains_keep_their_diagnostics(table, tmp_path):
    """Their training rows are left out; `save` asked for them."""
    x, _, y, _ = table
    chains = bl.MCLMC(num_warmup=20, num_samples=10, thin=1)
    regressor = bl.BayesianNNRegressor(hidden=(3,), method=chains, random_state=0)
    regressor.fit(x[:40], y[:40])
    pickle.loads(pickle.dumps(regressor)).save(tmp_path / "stored")
    both = (regressor, bl.tabular.load(tmp_path / "stored"))
    found, loaded = (one.posterior_.diagnostics().rhat_predictions for one in both)
    np.testing.assert_array_equal(loaded, found)


def test_work_in_other_processes():
    x, y = problems.wiggle(rows=40)
    regressor = bl.BayesianNNRegressor(**{**QUICK, "num_steps": 50})
    (fitted,) = joblib.Parallel(n_jobs=2)([joblib.delayed(regressor.fit)(x, y)])
    np.testing.assert_array_equal(fitted.predict(x), regressor.fit(x, y).predict(x))


def test_notebooks_see_the_run(fitted):
    unfitted = clone(fitted)._repr_html_()
    shown = fitted._repr_html_()
    assert "<svg" in shown
    assert "polyline" in shown
    assert "elbo" in shown
    assert 'class="bayeslearn"' not in unfitted
    assert fitted._repr_mimebundle_()["text/html"].count("polyline") == 1
    assert repr(fitted) == "BayesianNNRegressor(method='bayes-by-backprop', random_state=0)"
    assert "eval_elbo" in fitted.trace_


def test_an_own_network_and_held_out_rows():
    x, y = problems.wiggle()
    regressor = bl.BayesianNNRegressor(
        **{**QUICK, "num_steps": "auto"},
        network=bl.networks.MLP([6], "relu"),
        validation_fraction=0.25,
    ).fit(x, y)
    assert "eval_validation" in regressor.trace_
    assert float(regressor.posterior_.target.num_data) == 60
    assert regressor.score(x, y) > 0.7


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "magic"}, "`method` must be one of"),
        ({"method": 3}, "`method` must be an algorithm"),
        (
            {"prior_scale": -1.0},
            '`prior_scale` must be a positive number, "auto" or "hierarchical", got -1.0',
        ),
        ({"prior_scale": "1"}, "`prior_scale` must be a positive number"),
        (
            {"noise": "loud"},
            '`noise` must be a positive number, "auto", "learned", "heteroscedastic",'
            """ "student-t" or "log-normal", got 'loud'.""",
        ),
        ({"noise": 0}, "`noise` must be a positive number"),
        ({"hidden": (0,)}, "`hidden` must be positive layer sizes"),
        ({"activation": "nonsense"}, "`activation` must be a function or a name"),
        ({"num_samples": 0}, "`num_samples` must be a whole number"),
        ({"num_steps": 0}, "`num_steps` must be a whole number"),
        ({"batch_size": "many"}, "`batch_size` must be a whole number"),
        ({"validation_fraction": 1.5}, "`validation_fraction` must be None or between"),
        ({"validation_fraction": 0.99}, "`validation_fraction` must leave rows"),
        ({"method": "hmc", "num_steps": 5}, "`num_steps` must be left out for the sampler hmc"),
    ],
)
def test_bad_arguments_are_refused_in_fit_with_one_sentence(given, message):
    x, y = problems.wiggle(rows=20)
    regressor = bl.BayesianNNRegressor(**{**QUICK, **given})  # making it refuses nothing
    with pytest.raises(ArgumentError) as refused:
        regressor.fit(x, y)
    assert isinstance(refused.value, ValueError)
    assert str(refused.value).startswith(message)
    assert not hasattr(regressor, "posterior_")


def test_bad_rows_are_refused(fitted):
    x, y = problems.two_classes(rows=20)
    with pytest.raises(ValueError, match="1 class"):
        bl.BayesianNNClassifier(**QUICK).fit(x, np.ones(20))
    with pytest.raises(ArgumentError, match="negative"):
        bl.BayesianNNClassifier(**QUICK).fit(x, y, sample_weight=-np.ones(20))
    with pytest.raises(ArgumentError, match="`level` must be between 0 and 1"):
        fitted.predict_interval(np.zeros((2, 10)), level=90)
    with pytest.raises(ArgumentError, match="`n_samples` must be"):
        fitted.sample_y(np.zeros((2, 10)), 0)
    with pytest.raises(ArgumentError, match="`y` must be a vector, as in the first fit"):
        fitted.log_likelihood(np.zeros((2, 10)), np.zeros((2, 2)))
