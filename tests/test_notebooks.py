"""What objects show in a notebook: a small table or picture, everything of the user's escaped."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn import markup
from bayeslearn.tabular.compare.result import Comparison

EVIL = "<script>alert('&')</script>"


def read(html):
    """The elements; markup that is not well-formed fails."""
    return ET.fromstring(html.replace("&nbsp;", " "))


def cells(html):
    return ["".join(node.itertext()) for node in read(html).iter() if node.tag in ("th", "td")]


@pytest.fixture(scope="module")
def posterior():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    y = x @ [1.0, -1.0] + 0.1 * rng.normal(size=40)
    model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian(), bl.priors.Normal(scale=1.0))
    return bl.fit(model, bl.BayesByBackprop(), (x, y), seed=0, num_steps=200)


def test_a_posterior(posterior):
    html = posterior._repr_html_()
    found = cells(html)
    assert "Posterior by bayes-by-backprop" in "".join(read(html).itertext())
    assert "DiagonalGaussian, 4 weights" in found
    assert found[found.index("stopped") + 1] == posterior.stopped
    (line,) = (node for node in read(html).iter() if node.tag == "polyline")
    assert len(line.get("points").split()) == len(posterior.trace["eval_elbo"])


def test_predictions_of_numbers(posterior):
    x = np.random.default_rng(1).normal(size=(200, 2))
    predictive = posterior.predict(x)
    html = predictive._repr_html_()
    assert html.count("<circle") == 60  # of 200
    found = cells(html)
    head, first = found[:5], found[5:10]
    assert head == ["row", "mean", "std", "epistemic std", "aleatoric std"]
    numbers = [predictive.mean[0], predictive.std[0]]
    numbers += [np.sqrt(predictive.epistemic[0]), np.sqrt(predictive.aleatoric[0])]
    assert [float(v) for v in first[1:]] == pytest.approx(numbers, rel=1e-3)
    one = posterior.predict(x[:1])._repr_html_()
    assert one.count("<circle") == 1


def test_predictions_of_classes():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Categorical())
    posterior = bl.fit(model, bl.MAP(), (x, (x[:, 0] > 0).astype(int)), seed=0, num_steps=200)
    predictive = posterior.predict(x)
    found = cells(predictive._repr_html_())
    assert found[5] == str(predictive.probs[0].argmax())
    assert found[6] == f"{predictive.probs[0].max():.1%}"
    assert "Most probable classes" in predictive._repr_html_()


def test_a_model():
    model = bl.Model(
        bl.networks.MLP([7]),
        bl.likelihoods.Gaussian(),
        bl.priors.Normal(scale=0.5),
        dtype="float32",
    )
    found = cells(model._repr_html_())
    assert found[::2] == ["network", "likelihood", "prior", "dtype"]
    assert "7" in found[1]
    assert "Gaussian" in found[3]
    assert "0.5" in found[5]


def test_a_comparison_has_failures_last_and_escapes_everything():
    def row(method, log_likelihood, **more):
        scores = {"rmse": [1.25, 0.1], "log_likelihood": [log_likelihood, 0.1]}
        entry = {"method": method, "status": "ok", "reason": None, "metrics": scores}
        return entry | {"seconds": [2.0, 0.1]} | more

    rows = [
        row("broken", 0.0, status="failed", reason=EVIL, metrics={}),
        row("worse", -2.0),
        row(EVIL, -1.0),
    ]
    found = Comparison("regression", EVIL, EVIL, rows, {}, (), {}, {})._repr_html_()
    assert "<script" not in found
    names = ["".join(r.find("th").itertext()) for r in read(found).iter("tr")][1:]
    assert names == [EVIL, "worse", "broken"]
    assert "1.25 ± 0.10" in cells(found)


def test_numbers_that_are_not_finite_draw_nothing():
    assert markup.band(np.array([np.nan, 1.0]), np.ones(2), "label") == ""
    assert markup.trace(np.array([np.nan, 1.0]), "label") == ""
    assert "NaN" not in markup.band(np.ones(3), np.zeros(3), "label")
