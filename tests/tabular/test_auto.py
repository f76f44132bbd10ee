"""`method="auto"`: what it tries, what it chooses, and that the choice is kept."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn import progress
from bayeslearn.data.rows import Rows
from bayeslearn.errors import ArgumentError, DivergenceError, OutOfMemoryError
from bayeslearn.families import Mixture
from bayeslearn.progress import Progress
from bayeslearn.tabular import candidates, crew, selection, trials
from bayeslearn.tabular.candidates import Candidate, Method, method_for
from bayeslearn.tabular.selection import Selection
from bayeslearn.tabular.temperature import best_temperature, log_prob_at
from bayeslearn.tabular.timing import Costs
from bayeslearn.tabular.trials import FoldResult, Problem, Trial


@pytest.fixture(scope="module")
def short():
    """Two members, chains of a hundredth of their length, one fold."""
    patch = pytest.MonkeyPatch()
    patch.setattr(selection, "method_for", lambda name, *_, **__: Method(name, 2, 100))
    patch.setattr(trials, "SHORT", Method("mile", 2, 100))
    patch.setattr(crew, "num_folds", lambda rows: 1)
    patch.setattr(crew, "num_temperature_folds", lambda rows: 2)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    x = 3.0 + rng.normal(size=(120, 2)) * [1.0, 100.0]
    y = 50.0 + 10.0 * np.sin(x[:, 0]) + rng.normal(size=120)
    return x, y


@pytest.fixture(scope="module")
def fitted(short, table):
    events = []
    x, y = table
    regressor = bl.BayesianNNRegressor(hidden=(6,), num_steps=200, random_state=0)
    return regressor.fit(x[:90], y[:90], callback=lambda event: events.append(event)), events


def test_a_default_fit_says_what_was_tried_and_chosen(fitted, table):
    regressor, events = fitted
    x, y = table
    tried = [(row["prior_scale"], row["noise"]) for row in regressor.candidates_]
    assert tried == [("hierarchical", "student-t"), ("hierarchical", "learned")]
    assert all({"map", "ensemble", "mile", "seconds"} <= set(row) for row in regressor.candidates_)
    assert regressor.chosen_["hidden"] == (6,)
    assert regressor.chosen_["method"] in ("mile", "ensemble")
    assert {"rmse", "log_likelihood", "coverage90"} <= set(regressor.baseline_["map"])
    assert 0.5 < regressor.baseline_["map"]["rmse"] < y.std()  # in units of y
    assert 0.0 <= regressor.baseline_["map"]["seconds"] < regressor.posterior_.wall_time
    assert regressor.posterior_.notes[0].startswith("auto: ")
    assert {event.phase.split("/")[0] for event in events} >= {"candidate 1 of 2", "main"}
    assert regressor.score(x[90:], y[90:]) > 0.5


def test_the_same_seed_chooses_and_predicts_the_same(fitted, table):
    regressor, _ = fitted
    x, y = table
    again = bl.BayesianNNRegressor(**regressor.get_params()).fit(x[:90], y[:90])
    assert again.chosen_ == regressor.chosen_
    np.testing.assert_array_equal(again.predict(x[90:]), regressor.predict(x[90:]))


def test_the_rmse_of_several_columns_does_not_depend_on_their_units(short, table):
    x, y = table
    found = []
    for scale in (1.0, 1000.0):
        both = np.stack([y, scale * x[:, 0] * x[:, 1]], axis=1)
        settings = {"hidden": (), "noise": "learned", "num_steps": 100, "random_state": 0}
        regressor = bl.BayesianNNRegressor(**settings).fit(x[:60], both[:60])
        found.append(regressor.baseline_["map"]["rmse"])
        assert regressor.predict(x[60:]).shape == (60, 2)
    assert found[0] == pytest.approx(found[1], rel=1e-4)
    assert 0.1 < found[0] < 1.5


def test_saved_and_loaded(fitted, table, tmp_path):
    regressor, _ = fitted
    x, _ = table
    regressor.save(tmp_path / "saved")
    loaded = bl.tabular.load(tmp_path / "saved")
    np.testing.assert_array_equal(loaded.predict(x), regressor.predict(x))
    assert loaded.chosen_["method"] == regressor.chosen_["method"]
    assert len(loaded.candidates_) == len(regressor.candidates_)


@pytest.mark.parametrize("number", [2, 3, 4, 7, 10])
def test_few_rows_are_fitted(short, number, monkeypatch):
    monkeypatch.setattr(crew, "num_folds", trials.num_folds)
    x = np.linspace(0.0, 1.0, number)[:, None]
    settings = {"hidden": (), "num_steps": 100, "random_state": 0}
    regressor = bl.BayesianNNRegressor(**settings, noise="learned").fit(x, 5.0 + x[:, 0])
    mean, std = regressor.predict([[0.5]], return_std=True)
    assert abs(mean[0] - 5.5) < 0.5
    assert 0.0 < std[0] < 3.0
    labels = np.arange(number) % 2
    classifier = bl.BayesianNNClassifier(**settings).fit(x, labels)
    assert np.all(np.abs(classifier.predict_proba([[0.5]]) - 0.5) < 0.45)
    assert (number < 3) == (not classifier.candidates_)  # a row of each class


@pytest.mark.parametrize("keys", [{"groups": np.zeros(4)}, {"time_order": np.zeros(4)}])
def test_rows_that_cannot_be_held_out_have_the_first_candidate(short, keys):
    x = np.linspace(0.0, 1.0, 4)[:, None]
    settings = {"num_steps": 100, "random_state": 0}
    regressor = bl.BayesianNNRegressor(**settings).fit(x, x[:, 0], **keys)
    assert (regressor.chosen_["hidden"], regressor.chosen_["noise"]) == ((), "student-t")
    assert "No others were tried" in regressor.posterior_.notes[0]
    assert regressor.candidates_ == []
    assert regressor.baseline_ == {}
    classifier = bl.BayesianNNClassifier(**settings).fit(x, [0, 1, 2, 3])
    assert "No others were tried" in classifier.posterior_.notes[0]
    assert classifier.score(x, [0, 1, 2, 3]) >= 0.5


def test_the_plain_network_has_its_own_name(short, monkeypatch):
    monkeypatch.setattr(Trial, "gain_over", lambda *_: (-2.0, 1.0))
    x = np.linspace(0.0, 1.0, 20)[:, None]
    settings = {"hidden": (), "noise": "learned", "num_steps": 100, "random_state": 0}
    assert bl.BayesianNNRegressor(**settings).fit(x, x[:, 0]).chosen_["method"] == "map"


def test_classes_and_an_ensemble(short):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(80, 2))
    labels = np.where(x[:, 0] + 0.3 * rng.normal(size=80) > 0, "yes", "no")
    classifier = bl.BayesianNNClassifier(hidden=(4,), num_steps=200, random_state=0)
    classifier.fit(x[:60], labels[:60])
    assert {row["noise"] for row in classifier.candidates_} == {None}
    assert classifier.posterior_.calibrator.num_rows == 2 * 12  # of both folds
    assert classifier.score(x[60:], labels[60:]) > 0.7
    temperature = classifier.chosen_["temperature"]
    raw = classifier.posterior_.uncalibrated().predict(x[60:]).probs ** (1.0 / temperature)
    np.testing.assert_allclose(
        classifier.predict_proba(x[60:]), raw / raw.sum(axis=1, keepdims=True), rtol=1e-6
    )
    ensemble = bl.BayesianNNClassifier(
        hidden=(4,), num_steps=200, method=bl.Ensemble(num_members=3), random_state=0
    ).fit(x[:60], labels[:60])
    assert isinstance(ensemble.posterior_.family, Mixture)
    assert ensemble.chosen_["prior_scale"] == 3.0
    with pytest.raises(ArgumentError, match=r"3 points by ensemble.*again on all rows"):
        ensemble.partial_fit(x[60:], labels[60:])


def trial(has_classes=False, **log_probs):
    """Of a hundred rows."""
    rows = Rows(np.zeros((100, 1)), np.zeros(100, int), np.ones(100))
    probs = {name: np.exp(np.stack([v, v], axis=1)) for name, v in log_probs.items()}
    predictives = {name: SimpleNamespace(probs=value) for name, value in probs.items()}
    fold = FoldResult(rows, predictives, dict(log_probs), Costs(1.0))
    return Trial(Candidate((4,), 3.0), [fold], 1.0, has_classes)


def test_a_candidate_must_be_better_by_a_standard_error():
    rng = np.random.default_rng(2)
    noise = rng.normal(size=100)
    first = trial(mile=np.zeros(100), ensemble=np.zeros(100) - 1)
    lucky = trial(mile=0.05 + noise - noise.mean(), ensemble=np.zeros(100) - 1)
    better = trial(mile=0.5 + noise - noise.mean(), ensemble=np.zeros(100) - 1)
    assert selection.best_of([first, lucky]) is first
    assert selection.best_of([first, lucky, better]) is better
    assert selection.best_of([None, lucky]) is lucky
    assert selection.best_of([None, None]) is None


def test_chains_are_preferred_unless_the_ensemble_is_clearly_better():
    noise = np.random.default_rng(5).normal(size=100)
    away = noise - noise.mean()
    assert trial(mile=np.zeros(100) - 1, ensemble=0.05 + away - 1).best == "mile"
    assert trial(mile=np.zeros(100) - 1, ensemble=0.5 + away - 1).best == "ensemble"
    assert trial(ensemble=away).best == "ensemble"


def test_noise_does_not_collapse_where_half_of_the_rows_are_zero():
    """The noise of the first candidate, beside the constant one and the plain network."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1200, 3))
    y = np.maximum(0.0, 2.0 * np.sin(x[:, 0]) + x[:, 1] - 0.2 + 0.5 * rng.normal(size=1200))
    assert 0.4 < np.mean(y == 0) < 0.6
    found = {}
    for noise in ("student-t", "learned"):
        method = bl.Ensemble(num_members=2, validation_fraction=0.15)
        settings = {"hidden": (16,), "method": method, "num_steps": 1500, "random_state": 0}
        regressor = bl.BayesianNNRegressor(**settings, noise=noise).fit(x[:600], y[:600])
        rmse = np.sqrt(np.mean((regressor.predict(x[600:]) - y[600:]) ** 2))
        found[noise] = regressor.log_likelihood(x[600:], y[600:]), rmse
    assert found["student-t"][0] > found["learned"][0] - 0.05
    assert found["student-t"][1] < 1.03 * found["learned"][1]


def test_tiny_tables_begin_with_a_linear_model():
    assert candidates.network_sizes(60, False)[0] == ()
    assert () not in candidates.network_sizes(60, False)[1:]
    assert candidates.network_sizes(150, True)[0] != ()


def test_the_plain_network_is_returned_where_it_is_better(monkeypatch):
    monkeypatch.setattr(selection, "_all_scores", lambda *_: {})
    rng = np.random.default_rng(3)
    noise = rng.normal(size=100)
    rows = Rows(np.zeros((100, 1)), np.zeros(100), np.ones(100))
    problem = Problem(rows, True, ((4,),), (3.0,), (None,), None, lambda candidate: 1e4, None, 0)

    def chosen(gain):
        away = gain + noise - noise.mean()
        values = {"map": np.zeros(100) - 1, "mile": away - 1, "ensemble": noise - 9}
        return selection.choose(problem, (best := trial(**values)), [best], [], 1.0)

    assert chosen(-0.5).method.name == "map"  # a standard error is 0.1
    assert "it is returned" in chosen(-0.5).note
    assert chosen(-0.05).method.name == "mile"
    assert chosen(0.5).method.name == "mile"
    assert chosen(-0.5).method.algorithm().num_members == 1


def test_the_temperature_sharpens_what_is_too_cautious_and_not_more():
    rng = np.random.default_rng(4)
    truth = rng.dirichlet(np.ones(3) * 0.5, size=2000)
    labels = np.array([rng.choice(3, p=row) for row in truth])
    flat = truth**0.5 / np.sum(truth**0.5, axis=1, keepdims=True)
    one = np.ones(2000)
    assert best_temperature(flat, labels, one) == pytest.approx(0.5, abs=0.05)
    assert best_temperature(truth, labels, one) == pytest.approx(1.0, abs=0.08)
    np.testing.assert_allclose(
        log_prob_at(0.5, flat, labels), np.log(truth[np.arange(2000), labels]), atol=1e-9
    )
    # Rows that are all predicted well, or of no weight, do not make it zero.
    right = np.full((20, 2), [0.9, 0.1])
    assert best_temperature(right, np.zeros(20, int), np.ones(20)) > 0.3
    assert best_temperature(right, np.zeros(20, int), np.zeros(20)) == pytest.approx(1.0, abs=1e-3)


def test_chains_are_shorter_on_larger_tables_and_longer_with_a_budget():
    small, large = method_for("mile", 1e5), method_for("mile", 2e7)
    assert small.num_members == 8
    assert large.num_members == 4
    assert candidates.MIN_STEPS <= large.num_steps < small.num_steps
    assert method_for("mile", 2e7, speed=4.0).num_steps > large.num_steps
    assert candidates.allows_chains(1e5)
    assert not candidates.allows_chains(1e9)
    huge = method_for("mile", candidates.MAX_WORK)
    assert huge.num_steps < candidates.MIN_STEPS
    assert 2 * 4 * huge.num_steps * candidates.MAX_WORK <= candidates.LARGEST_WORK
    algorithm = small.algorithm()
    kept = algorithm.sampler.num_samples * algorithm.num_members
    assert kept <= 1000
    assert algorithm.sampler.num_warmup == small.num_steps // 2


def test_a_search_ends_between_folds_and_candidates_where_the_budget_does(monkeypatch):
    ran = []
    now = [0.0]
    monkeypatch.setattr(crew, "num_cores", lambda: 1)
    monkeypatch.setattr(crew, "num_folds", trials.num_folds)
    monkeypatch.setattr(crew.time, "perf_counter", lambda: now[0])

    def run_trial(problem, candidate, folds, callback):
        ran.append((candidate.hidden, *folds))
        now[0] += 3.0
        made = trial(mile=np.zeros(100), ensemble=np.zeros(100))
        made.seconds = 3.0
        return made

    monkeypatch.setattr(crew, "run_trial", run_trial)
    rows = Rows(np.zeros((100, 1)), np.zeros(100), np.ones(100))
    problem = Problem(rows, False, ((4,),), (3.0,), (None,), None, lambda _: 1e4, None, 0)
    tried = [Candidate((n,), 3.0) for n in (1, 2, 3)]
    with Progress("auto", 1, False) as bar:
        for budget, expected in (
            (1.0, [((1,), 0)]),
            (20.0, [((1,), 0), ((2,), 0)]),
            (50.0, [((n,), k) for k in (0, 1) for n in (1, 2, 3)]),
        ):
            ran.clear()
            now[0] = 0.0
            found = crew.Crew(problem, budget, None, bar, 3)
            trials_found = found.run(tried)
            assert ran == expected
            assert trials_found[0] is not None
            assert all("not tried" in why for _, why in found.failures)
            assert len(found.failures) == sum(one is None for one in trials_found)


def test_candidates_that_fail_are_named_in_order(monkeypatch):
    def run_trial(problem, candidate, folds, callback):
        if candidate.hidden[0] == 3:
            return trial(mile=np.zeros(100), ensemble=np.zeros(100))
        time.sleep(0.2 / candidate.hidden[0])
        raise (DivergenceError if candidate.hidden[0] == 1 else OutOfMemoryError)("It was lost.")

    monkeypatch.setattr(crew, "run_trial", run_trial)
    rows = Rows(np.zeros((100, 1)), np.zeros(100), np.ones(100))
    problem = Problem(rows, False, ((4,),), (3.0,), (None,), None, lambda _: 1e4, None, 0)
    with Progress("auto", 1, False) as bar:
        found = crew.Crew(problem, None, None, bar, 3)
        results = found.run([Candidate((n,), 3.0) for n in (1, 2, 3)])
    assert [one is None for one in results] == [True, True, False]
    assert [candidate.hidden for candidate, _ in found.failures] == [(1,), (2,)]


def test_progress_names_the_candidate_and_its_phase(short, capsys, monkeypatch):
    monkeypatch.setattr(progress, "HEARTBEAT", 0.01)
    monkeypatch.setattr(progress._Heartbeat, "last_line", None)
    x = np.linspace(0.0, 1.0, 20)[:, None]
    settings = {"hidden": (), "noise": "learned", "num_steps": 100, "random_state": 0}
    bl.BayesianNNRegressor(**settings, progress=True).fit(x, x[:, 0])
    assert "map, candidate 1 of 1, member" in capsys.readouterr().err


def test_small_tables_are_held_out_in_more_folds():
    assert [trials.num_folds(n) for n in (40, 300, 600, 5000)] == [5, 3, 2, 1]
    assert [trials.num_temperature_folds(n) for n in (40, 300, 600, 1000, 5000)] == [5, 5, 4, 2, 1]


def test_a_resumed_run_keeps_its_choice(tmp_path):
    made = Selection(
        Candidate((4, 4), 3.0, "student-t"), Method("mile", 2, 100), [{"map": 1.0}], {}, "why"
    )
    new = bl.Checkpoint(tmp_path / "run")
    assert selection.stored_or(new, lambda: made) == made
    again = bl.Checkpoint(tmp_path / "run", resume=True)
    assert selection.stored_or(again, lambda: pytest.fail("chosen again")) == made
    assert selection.stored_or(None, lambda: made) == made


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget": "soon"}, "`budget` must be a number of seconds"),
        (
            {"budget": "1m", "method": "map"},
            '`budget` must be None unless method="auto"',
        ),
        ({"prior_scale": "wide"}, "`prior_scale` must be"),
        ({"noise": "loud", "method": "map"}, "`noise` must be"),
    ],
)
def test_bad_settings_are_refused(given, message, table):
    with pytest.raises(ArgumentError, match=message):
        bl.BayesianNNRegressor(random_state=0, **given).fit(*table)
