"""The report: its contents are data, its page escapes everything, and a browser can use it."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import warnings
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from browser import browse, framed, in_a_browser

import bayeslearn as bl
from bayeslearn import report
from bayeslearn.errors import ArgumentError
from bayeslearn.results import metrics

EVIL = "</script><script>alert('&')</script>"


def table(rows, columns, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns)) * 10.0 ** np.arange(columns)
    return x, 5.0 + 3.0 * np.tanh(x[:, 0]) + 0.4 * rng.normal(size=rows)


@pytest.fixture(scope="module")
def split():
    """Three columns, one of an evil name."""
    x, y = table(90, 3)
    x = pd.DataFrame(x, columns=[EVIL, "b", "c"])
    return x[:50], y[:50], x[50:], y[50:]


@pytest.fixture(scope="module")
def regressor(split):
    return bl.BayesianNNRegressor(hidden=(), method="laplace", random_state=0).fit(*split[:2])


@pytest.fixture(scope="module")
def sampler(split):
    method = bl.HMC(num_warmup=20, num_samples=20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bl.MixingWarning)
        return bl.BayesianNNRegressor(hidden=(), method=method, random_state=0).fit(*split[:2])


@pytest.fixture(scope="module")
def labelled():
    x, y = table(80, 2)
    labels = np.array(["low", EVIL, "high"])[np.digitize(y, [4.0, 6.0])]
    return x[:50], labels[:50], x[50:], labels[50:]


@pytest.fixture(scope="module")
def classifier(labelled):
    options = {"hidden": (), "method": "map", "num_steps": 200, "random_state": 0}
    return bl.BayesianNNClassifier(**options).fit(*labelled[:2])


@pytest.fixture(scope="module")
def of_fit(regressor, split):
    return report.from_fit(regressor, *split, settings={"target": EVIL, "file": "data.csv"})


@pytest.fixture(scope="module")
def of_classes(classifier, labelled):
    return report.from_fit(classifier, *labelled)


@pytest.fixture(scope="module")
def of_comparison(regressor, sampler, split, of_fit):
    scores = of_fit["table"][0]["metrics"]
    worse = {name: [1.5 * mean, 0.1] for name, (mean, _) in scores.items()}
    good = {"status": "ok", "reason": None, "memory_mb": 12.0, "pareto": True}
    rows = [
        {"method": "hmc", "metrics": worse, "seconds": [9.0, 0.5], **good},
        {"method": "laplace", "metrics": scores, "seconds": [1.0, 0.1], **good},
        {
            "method": "nuts",
            "status": "failed",
            "reason": EVIL,
            "metrics": {},
            "seconds": [0.0, 0.0],
            "memory_mb": None,
            "pareto": False,
        },
        {"method": "map", "metrics": {"rmse": [1.0, 0.2]}, "seconds": [0.5, 0.1], **good},
    ]
    result = {
        "kind": "comparison",
        "task": "regression",
        "recommended": "laplace",
        "recommendation": "It is the best. It is cheap.",
        "table": rows,
        "settings": {
            "rows": 90,
            "columns": 3,
            "target": EVIL,
            "splits": 3,
            "seed": 0,
            "classes": None,
        },
        "versions": {"bayeslearn": bl.__version__},
    }
    return report.from_comparison(
        SimpleNamespace(
            to_dict=lambda: result,
            first_split=split,
            fitted={"laplace": regressor, "hmc": sampler, "map": SimpleNamespace(posterior_=None)},
        )
    )


@pytest.fixture(params=["of_fit", "of_classes", "of_comparison"])
def contents(request):
    return request.getfixturevalue(request.param)


# The contents


def test_contents_survive_json_unchanged(contents):
    assert json.loads(json.dumps(contents, allow_nan=False)) == contents


def test_a_page_can_be_written_again_from_a_file_without_jax(of_classes, tmp_path):
    (tmp_path / "report.json").write_text(json.dumps(of_classes))
    code = (
        "import json, sys; from bayeslearn import report;"
        f"report.write(json.load(open({str(tmp_path / 'report.json')!r})), sys.argv[1]);"
        "print('jax' in sys.modules)"
    )
    path = tmp_path / "again.html"
    command = [sys.executable, "-c", code, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
    report.write(of_classes, tmp_path / "first.html")
    assert path.read_text() == (tmp_path / "first.html").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.html", "first.html", "report.json"]


def test_scores_and_points_are_in_the_units_of_y(of_fit, regressor, split):
    x, y = split[2:]
    mean, std = regressor.predict(x, return_std=True)
    lower, upper = regressor.predict_interval(x)
    scores = {name: mean for name, (mean, _) in of_fit["table"][0]["metrics"].items()}
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean((mean - y) ** 2)))
    assert scores["log_likelihood"] == pytest.approx(regressor.log_likelihood(x, y))
    assert scores["coverage90"] == pytest.approx(np.mean((lower <= y) & (y <= upper)))
    rows = of_fit["fits"][0]["rows"]
    # Rounded to four figures of the range of the column.
    for name, exact in (("mean", mean), ("std", std), ("low", lower), ("observed", y)):
        assert rows[name] == pytest.approx(exact, abs=1e-3 * np.ptp(exact) + 1e-9)
    # Within three and a half standard deviations lies nearly everything, half of it below.
    total = np.sum(rows["bins"], axis=1)
    assert np.all((total > 990) & (total <= 1010))
    assert of_fit["fits"][0]["where"]["label"].startswith("first principal component")


def test_classes_are_named_and_the_observed_one_always(of_classes, classifier, labelled):
    x, y = labelled[2:]
    probs = classifier.predict_proba(x)
    fit = of_classes["fits"][0]
    assert fit["classes"] == [str(name) for name in classifier.classes_]
    for row, result in enumerate(fit["rows"]["probs"]):
        assert {label: share / 1000 for label, share in result} == pytest.approx(
            dict(enumerate(probs[row])), abs=6e-4
        )
    assert np.array(fit["classes"])[fit["rows"]["observed"]].tolist() == y.tolist()
    codes = np.searchsorted(classifier.classes_, y)
    found = metrics.reliability(classifier.predictive(x), codes)
    assert codes.tolist() == classifier.observed(x, y).tolist()
    assert fit["calibration"]["rows"] == found.rows.tolist()
    side = fit["where"]["side"]
    assert len(fit["where"]["classes"]) == side * side


def test_a_sampler_has_chains_and_a_point_no_widths(of_comparison, of_classes):
    fits = {fit["method"]: fit for fit in of_comparison["fits"]}
    chains, trace = fits["hmc"]["chains"], fits["hmc"]["trace"]
    assert chains["draws"] == 20 * chains["chains"]
    assert len(trace["values"]) == chains["chains"]
    assert chains["predictions"]["ess_bulk"] > 0
    assert fits["laplace"]["chains"] is None
    assert fits["laplace"]["widths"]
    assert of_classes["fits"][0]["widths"] == []


def test_one_method_that_cannot_be_shown_does_not_cost_the_report(of_comparison):
    (broken,) = (fit for fit in of_comparison["fits"] if fit["method"] == "map")
    assert broken["error"].startswith("AttributeError")


def test_of_many_rows_some_are_shown(regressor, split, of_fit, monkeypatch):
    monkeypatch.setattr("bayeslearn.report.contents.SCORED_ROWS", 39)
    monkeypatch.setattr("bayeslearn.report.contents.SHOWN_ROWS", 20)
    fit = report.from_fit(regressor, *split)["fits"][0]
    assert fit["num_rows"] == sum(fit["pit"]) == 39
    assert len(fit["rows"]["mean"]) == 20
    assert fit["rows"]["row"][0] == 1
    assert fit["rows"]["row"][-1] == 40
    kept = np.array(fit["rows"]["row"]) - 1
    mean = np.array(of_fit["fits"][0]["rows"]["mean"])[kept]
    assert fit["rows"]["mean"] == pytest.approx(mean, abs=1e-3 * np.ptp(mean))


def test_what_is_no_estimator_or_no_contents_is_refused(split):
    with pytest.raises(ArgumentError, match="`estimator` must be a fitted estimator"):
        report.from_fit(bl.BayesianNNRegressor(), *split)
    with pytest.raises(ArgumentError, match="`contents` must be what from_fit"):
        report.render({"kind": "cake"})
    with pytest.raises(ArgumentError, match="contents without settings, table"):
        report.render({"kind": "fit", "task": "regression", "versions": {}})


# The page


class Reader(HTMLParser):
    """Every element that could ask a network for something or run, and the texts of scripts."""

    def __init__(self):
        super().__init__()
        self.scripts, self.addresses, self.tags, self._kind = [], [], [], None

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "srcset")]
        if tag == "script":
            self._kind = dict(attrs).get("type", "text/javascript")

    def handle_data(self, data):
        if self._kind:
            self.scripts.append((self._kind, data))

    def handle_endtag(self, tag):
        if tag == "script":
            self._kind = None


def read(page):
    reader = Reader()
    reader.feed(page)
    return reader


def test_nothing_of_the_users_becomes_markup(contents):
    page = report.render(contents)
    assert EVIL in json.dumps(contents)
    assert EVIL not in page
    reader = read(page)
    assert [kind for kind, _ in reader.scripts] == ["application/json", "text/javascript"]
    assert json.loads(reader.scripts[0][1]) == contents


def test_the_page_stands_alone(contents):
    page = report.render(contents)
    reader = read(page)
    assert reader.addresses == ["#main"]
    assert not {"link", "img", "iframe", "object", "embed", "base"} & set(reader.tags)
    own = re.sub(r"http://www\.w3\.org/2000/svg", "", page)  # a name, not an address
    assert not re.search(r"https?://|url\(\s*['\"]?(?!#)|@import", own)
    assert len(page) < 300_000


def test_a_cut_fit_and_a_status_are_shown(of_comparison):
    rows = [dict(row) for row in of_comparison["table"]]
    rows[0]["cut_short"] = "step 550 of 5000"
    rows[2] |= {"status": "not tried", "reason": "The budget was spent before its turn."}
    page = report.render(of_comparison | {"table": rows, "recommended": None})
    assert "cut at step 550 of 5000</span>" in page
    assert "<b>not tried</b>: The budget was spent" in page
    assert "<h2>No recommendation</h2>" in page


def test_words_of_the_field(contents):
    page = report.render(contents)
    assert "pistemic uncertainty" in page
    assert "doubt" not in page


def test_failures_are_rows_with_their_reason(of_comparison):
    page = report.render(of_comparison)
    row = re.search(r'<tr role="row" class="failed".*?</tr>', page)[0]
    assert "nuts" in row
    assert "alert(&#x27;&amp;&#x27;)" in row
    # Best log-likelihood first, failures last.
    assert re.findall(r'<tr[^>]*data-method="([^"]*)"', page) == ["laplace", "hmc", "map", "nuts"]


# In a browser

PROBE = """
window.failures = [];
addEventListener("error", (event) => failures.push(String(event.message)));
for (const name of ["error", "warn"]) console[name] = (...words) => failures.push(words.join(" "));
"""
ACTIONS = """
addEventListener("load", () => {
  const found = {failures, width: innerWidth, scroll: document.documentElement.scrollWidth};
  const order = () =>
    [...document.querySelectorAll("#methods tbody tr")].map((r) => r.dataset.method);
  const sorts = () => [...document.querySelectorAll("#methods thead th")].map((h) => h.ariaSort);
  const head = (name) => [...document.querySelectorAll("#methods thead button")]
    .find((b) => b.textContent === name);
  const panel = () => document.querySelector(".panel:not([hidden])");
  const press = (node, key) =>
    node.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
  found.titles = [...panel().querySelectorAll("figure h4")].map((h) => h.textContent);
  found.nan = document.body.innerHTML.match(/="[^"]*(NaN|undefined|Infinity)[^"]*"/g) || [];
  const chart = panel().querySelector("svg[tabindex]"), tip = document.getElementById("tip");
  chart.focus();
  press(chart, "ArrowRight");
  found.tip = tip.hidden ? null : tip.textContent;
  found.tipDrawn = tip.querySelectorAll("rect").length;
  found.marked = panel().querySelectorAll(".on").length;
  press(document, "Escape");
  found.tipGone = tip.hidden;
  if (head("seconds")) {
    found.atFirst = sorts();
    head("seconds").click(); found.bySeconds = order(); found.sorts = sorts();
    head("seconds").click(); found.bySecondsDown = order();
    head("log-likelihood").click(); found.byMerit = order();
    head("90 % coverage").click(); found.byCoverage = sorts();
    head("method").click(); found.byName = order();
    const picker = document.getElementById("method");
    found.options = [...picker.options].map((o) => o.value);
    found.first = panel().querySelector("h3").textContent;
    picker.value = "hmc"; picker.dispatchEvent(new Event("change"));
    found.second = panel().querySelector("h3").textContent;
    found.chains = [...panel().querySelectorAll("figure h4")].map((h) => h.textContent);
    [...document.querySelectorAll(".pick")].find((b) => b.textContent === "laplace").click();
    found.third = panel().querySelector("h3").textContent;
    found.hash = location.hash;
  }
  dispatchEvent(new Event("beforeprint"));
  found.filled = [...document.querySelectorAll(".panel")].map((p) => p.childElementCount > 0);
  const out = document.createElement("pre");
  out.id = "found";
  out.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(found))));
  document.body.append(out);
});
"""


def tried(contents, folder):
    """What the actions above found, at the width of a phone."""
    page = report.render(contents)
    page, changed = re.subn(r"<meta http-equiv=[^>]*>", lambda m: f"<script>{PROBE}</script>", page)
    assert changed == 1
    page = page.replace("</body>", f"<script>{ACTIONS}</script></body>")
    document, _ = browse(framed(page, 360), folder)
    return json.loads(base64.b64decode(re.search(r'<pre id="found">([^<]*)</pre>', document)[1]))


@pytest.fixture(scope="module")
def used(of_comparison, tmp_path_factory):
    return tried(of_comparison, tmp_path_factory.mktemp("comparison"))


@pytest.fixture(scope="module")
def used_classes(of_classes, tmp_path_factory):
    return tried(of_classes, tmp_path_factory.mktemp("classes"))


@in_a_browser
def test_the_page_as_it_is_draws_its_charts_and_complains_of_nothing(of_fit, tmp_path):
    document, result = browse(report.render(of_fit), tmp_path)
    assert document.count('<svg class="chart"') >= 6
    assert "CONSOLE" not in result


@in_a_browser
def test_charts_of_a_regression(used):
    assert used["failures"] == []
    assert used["nan"] == []
    assert used["titles"] == [
        "Observed against predicted",
        "Residuals",
        "Prediction along the main direction",
        "Calibration of the intervals",
        "Probability integral transform (PIT)",
        "Coverage by predicted mean",
        "Intervals by width",
        "Epistemic and aleatoric uncertainty",
        "Permutation importance: mean",
        "Permutation importance: epistemic uncertainty",
        "Posterior std of the weights by layer",
    ]
    assert "R-hat and effective sample sizes" in used["chains"]
    assert "Log-density of the chains" in used["chains"]


@in_a_browser
def test_charts_of_a_classification(used_classes):
    assert used_classes["failures"] == []
    assert used_classes["nan"] == []
    assert used_classes["titles"][:7] == [
        "Observed against predicted",
        "Predicted classes",
        "Calibration of the probabilities",
        "Selective prediction",
        "Accuracy by confidence",
        "Accuracy by group",
        "Epistemic and aleatoric uncertainty",
    ]
    assert used_classes["tip"].startswith("Held-out row")
    assert used_classes["tipDrawn"] == 3  # a bar for each class


@in_a_browser
def test_nothing_is_wider_than_a_phone(used, used_classes):
    for found in (used, used_classes):
        assert found["width"] == 360
        assert found["scroll"] == 360


@in_a_browser
def test_the_table_sorts_and_keeps_failures_last(used):
    assert used["bySeconds"] == ["map", "laplace", "hmc", "nuts"]
    assert used["bySecondsDown"] == ["hmc", "laplace", "map", "nuts"]
    assert used["byName"] == ["hmc", "laplace", "map", "nuts"]
    assert used["byMerit"] == ["laplace", "hmc", "map", "nuts"]
    # What a screen reader reads is the order of the numbers, whichever end is the better one.
    for sorts, word in (("atFirst", "descending"), ("sorts", "ascending"), ("byCoverage", "other")):
        assert used[sorts].count(word) == 1
        assert used[sorts].count("none") == len(used[sorts]) - 1


@in_a_browser
def test_methods_are_chosen_from_the_list_and_from_the_table(used):
    assert used["options"] == ["laplace", "hmc", "map"]
    assert (used["first"], used["second"], used["third"]) == ("laplace", "hmc", "laplace")
    assert used["hash"] == "#method=laplace"


@in_a_browser
def test_the_keyboard_reaches_a_rows_predictive_distribution(used):
    assert used["tip"].startswith("Held-out row")
    assert "observed" in used["tip"]
    assert used["tipDrawn"] > 20  # its density
    # Observed against predicted, residuals, band, intervals, and twice among the uncertainties.
    assert used["marked"] == 6
    assert used["tipGone"]


@in_a_browser
def test_all_methods_are_printed(used):
    assert used["filled"] == [True, True, True]
