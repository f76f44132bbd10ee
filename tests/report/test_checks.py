"""The report's checks on held-out rows, and its page at the widths of a desk and of a phone."""

import base64
import copy
import json
import re
import types

import numpy as np
import pandas as pd
import pytest
from browser import DARK, browse, framed, in_a_browser
from sklearn.inspection import permutation_importance
from sklearn.metrics import confusion_matrix, r2_score

import bayeslearn as bl
from bayeslearn import report
from bayeslearn.report import checks

ROWS = 80  # held out
COLUMNS = ["slope", "flat", "where=north", "where=south", "where=west"]


@pytest.fixture(scope="module")
def split():
    """y depends on the first column and, in its mean and noise, on the category."""
    rng = np.random.default_rng(0)
    region = rng.integers(0, 3, 60 + ROWS)
    x = pd.DataFrame(rng.normal(size=(60 + ROWS, 5)), columns=COLUMNS)
    x[COLUMNS[2:]] = np.eye(3)[region]
    y = 3.0 * x["slope"].to_numpy() + region + (0.2 + 0.6 * region) * rng.normal(size=60 + ROWS)
    return x[:60], y[:60], x[60:], y[60:]


@pytest.fixture(scope="module")
def regressor(split):
    options = {"hidden": (), "method": "laplace", "random_state": 0, "calibration": "conformal"}
    return bl.BayesianNNRegressor(**options).fit(*split[:2])


@pytest.fixture(scope="module")
def contents(regressor, split):
    return report.from_fit(regressor, *split, settings={"target": "price"})


@pytest.fixture(scope="module")
def fit(contents):
    return contents["fits"][0]


@pytest.fixture(scope="module")
def classified(split):
    labels = np.array(["low", "mid", "high"])[np.digitize(np.concatenate(split[1::2]), [-1, 2])]
    options = {"hidden": (), "method": "laplace", "random_state": 0}
    classifier = bl.BayesianNNClassifier(**options).fit(split[0], labels[:60])
    return classifier, (split[0], labels[:60], split[2], labels[60:])


@pytest.fixture(scope="module")
def of_classes(classified):
    return report.from_fit(classified[0], *classified[1])


def test_r2_is_that_of_scikit_learn(contents, regressor, split):
    found = contents["table"][0]["metrics"]["r2"][0]
    assert found == pytest.approx(r2_score(split[3], regressor.predict(split[2])))


def test_the_baseline_ignores_the_columns(fit, split, of_classes, classified):
    mean, std = split[1].mean(), split[1].std()
    residual = split[3] - mean
    scores = fit["baseline"]["metrics"]
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean(residual**2)))
    density = -0.5 * (residual / std) ** 2 - np.log(std * np.sqrt(2 * np.pi))
    assert scores["log_likelihood"] == pytest.approx(density.mean())
    labels, tested = classified[1][1], classified[1][3]
    names, counts = np.unique(labels, return_counts=True)
    frequent = names[counts.argmax()]
    other = of_classes["fits"][0]["baseline"]
    assert other["label"].endswith(frequent)
    assert other["metrics"]["accuracy"] == np.mean(tested == frequent)


def test_the_confusion_matrix_is_that_of_scikit_learn(of_classes, classified):
    classifier, (_, _, x, labels) = classified
    expected = confusion_matrix(labels, classifier.predict(x), labels=classifier.classes_)
    assert of_classes["fits"][0]["confusion"] == expected.tolist()


def test_coverage_by_part_adds_up_to_coverage(contents, fit, regressor, split):
    x, y = split[2:]
    low, high = regressor.predict_interval(x)
    inside = (low <= y) & (y <= high)
    assert sum(part["rows"] for part in fit["deciles"]) == ROWS
    total = sum(part["rows"] * part["good"] for part in fit["deciles"])
    assert total == pytest.approx(ROWS * contents["table"][0]["metrics"]["coverage90"][0], abs=0.01)
    ends = [end for part in fit["deciles"] for end in (part["from"], part["to"])]
    assert ends == sorted(ends)
    groups = {group["name"]: group for group in fit["groups"]}
    assert list(groups) == COLUMNS[2:]  # a category, but no column of many values
    for name, group in groups.items():
        members = x[name] == 1
        assert group["rows"] == members.sum()
        assert group["good"] == pytest.approx(inside[members].mean(), abs=1e-4)


def test_groups_are_values_of_a_column_that_has_few():
    hits = checks.Hits(np.array([True, False, True, True]), np.full(4, 0.9), np.arange(4.0))
    x = np.array([[1.0, 0.5], [1.0, 0.6], [2.0, 0.7], [2.0, 0.8]]).repeat(3, axis=0)[::3]
    found = checks.groups(hits, x, ["floor", "size"], None)
    assert [group["name"] for group in found][:2] == ["floor = 1", "floor = 2"]
    assert [group["good"] for group in found][:2] == [0.5, 1.0]


def test_permutation_importance_agrees_with_scikit_learn(fit, regressor, split):
    """Of the linear model, whose increase of the squared error by shuffling is known as well.

    Ours shuffles twice, scikit-learn's 20 times; a shuffle's standard deviation is measured. The
    bound of five standard errors fails correct code less than once in a hundred thousand columns.
    """
    found = fit["importance"]
    assert found["names"] == ["slope", "where", "flat"]
    other = permutation_importance(
        regressor,
        split[2],
        split[3],
        scoring="neg_root_mean_squared_error",
        n_repeats=20,
        random_state=0,
    )
    ours = dict(zip(found["names"], found["error"], strict=True))
    for i, name in ((0, "slope"), (1, "flat")):
        bound = 5 * other.importances_std[i] * np.sqrt(1 / 2 + 1 / 20)
        assert abs(ours[name] - other.importances_mean[i]) < bound + 1e-3


def test_a_column_without_weight_has_no_importance():
    """Neither mean nor epistemic std of the stand-in use the second column."""

    def predictive(x):
        return types.SimpleNamespace(kind="regression", mean=x[:, 0], epistemic=x[:, 0] ** 2)

    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 2))
    estimator = types.SimpleNamespace(predictive=predictive, n_features_in_=2)
    rows = types.SimpleNamespace(X=x, y=x[:, 0])
    found = checks.importance(estimator, rows)
    assert found["names"] == ["x[0]", "x[1]"]
    assert found["error"][0] > 0.5
    assert found["epistemic"][0] > 0.3
    assert found["error"][1] == found["epistemic"][1] == 0.0


def test_before_and_after_calibration(contents, fit, regressor, split):
    before = fit["before"]
    plain = regressor.posterior_.uncalibrated()
    predictive = plain.predict(split[2].to_numpy(), num_samples=256, seed=plain.seed)
    expected = bl.metrics.coverage(predictive, split[3])
    assert before["metrics"]["coverage90"] == pytest.approx(expected, abs=1 / ROWS)
    assert before["calibration"]["covered"] != fit["calibration"]["covered"]
    assert contents["table"][0]["metrics"]["coverage90"][0] != before["metrics"]["coverage90"]


def test_before_cross_calibration(split):
    options = {"hidden": (), "method": "map", "num_steps": 100, "random_state": 0}
    fitted = bl.BayesianNNRegressor(**options, calibration="cv+").fit(*split[:2])
    rows = types.SimpleNamespace(X=split[2], y=split[3])
    found = checks.before_calibration(fitted, rows)["metrics"]["coverage90"]
    plain = bl.BayesianNNRegressor(**options).fit(*split[:2])
    assert found == pytest.approx(bl.metrics.coverage(plain.predictive(split[2]), split[3]))
    assert hasattr(fitted, "cross_calibration_")  # which stays


def test_sets_before_and_after(classified):
    classifier, (_, _, x, labels) = classified
    fitted = copy.copy(classifier).calibrate(x, labels, "conformal")
    rows = types.SimpleNamespace(X=x, y=fitted.observed(x, labels))
    found = checks.before_calibration(fitted, rows)
    for part, one in (("metrics", classifier), ("after", fitted)):
        sets = one.predict_set(x)
        assert found[part]["set_size90"] == pytest.approx(sets.sum(axis=1).mean(), abs=0.2)
    assert found["after"]["set_coverage90"] >= 0.88
    assert found["metrics"] != found["after"]


def test_columns_of_one_date_belong_together():
    names = ["sold", "sold:year_sin", "sold:year_cos", "area", "area:missing", "a:b", "town=Ulm"]
    names += ["town=Bonn", "town:missing"]
    columns = np.zeros((3, len(names)))
    found = {group.name: group.columns for group in checks.grouped(names, columns)}
    assert found == {"sold": [0, 1, 2], "area": [3, 4], "a:b": [5], "town": [6, 7, 8]}


def test_large_numbers_have_one_format(contents):
    label = checks.baseline(True, np.array([53385.2, 53385.4]), np.ones(2), [])["label"]
    assert label == "predicting the mean, 53,385"
    row = contents["table"][0] | {"metrics": {"rmse": [53385.2, None]}}
    page = report.render(contents | {"table": [row]})
    assert "The RMSE is 53,385" in page
    assert "e+04" not in page.split("<script")[0]


def test_every_row_is_listed(fit, regressor, split):
    listed = fit["every_row"]
    assert listed["row"] == list(range(1, ROWS + 1))
    low, high = regressor.predict_interval(split[2])
    assert listed["low"] == pytest.approx(low, abs=1e-3 * np.ptp(low))
    assert listed["high"] == pytest.approx(high, abs=1e-3 * np.ptp(high))


def test_a_page_of_earlier_contents_can_still_be_written(contents):
    old = {name: v for name, v in contents["fits"][0].items() if name not in NEW}
    page = report.render(contents | {"fits": [old]})
    assert "Baseline" not in page


NEW = {"baseline", "before", "deciles", "groups", "importance", "every_row", "confusion"}


# In a browser

PROBE = """
window.failures = [];
addEventListener("error", (event) => failures.push(String(event.message)));
for (const name of ["error", "warn"]) console[name] = (...words) => failures.push(words.join(" "));
"""
ACTIONS = """
addEventListener("load", () => {
  const all = (query, root) => [...(root || document).querySelectorAll(query)];
  const found = {failures, width: innerWidth, scroll: document.documentElement.scrollWidth};
  found.titles = all("figure h4").map((h) => h.textContent);
  found.nan = document.body.innerHTML.match(/="[^"]*(NaN|undefined|Infinity)[^"]*"/g) || [];
  // What is wider than its frame
  found.wide = all(".scroll").filter((s) => s.scrollWidth > s.clientWidth).map((s) => s.ariaLabel);
  found.beyond = all("main *").filter((n) => n.getBoundingClientRect().right > innerWidth + 1
    && getComputedStyle(n).position !== "fixed").length;
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const part = [r, g, b].map((v) => v / 255)
      .map((v) => (v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4));
    return .2126 * part[0] + .7152 * part[1] + .0722 * part[2];
  };
  const behind = (node) => {
    for (let n = node; n; n = n.parentElement) {
      const color = rgb(getComputedStyle(n).backgroundColor);
      if (color.length < 4 || color[3] > .99) return color;
    }
    return [255, 255, 255];
  };
  const contrast = (node, color) => {
    const [a, b] = [light(rgb(color)), light(behind(node))];
    return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  };
  const texts = "h1, h2, h4, p, figcaption, td, th, dt, dd, .legend li, .turn:enabled";
  found.contrast = Math.min(...all(texts)
    .filter((n) => n.offsetParent).map((n) => contrast(n, getComputedStyle(n).color)),
    ...all("svg text").map((n) => contrast(n, getComputedStyle(n).fill)));
  found.page = light(rgb(getComputedStyle(document.body).backgroundColor));
  const table = document.querySelector("table.rows");
  if (table) {
    const status = document.querySelector(".turns [role=status]");
    const cells = (column) => all("tbody tr", table).map((row) => row.cells[column].textContent);
    const button = (text) => all("button").find((b) => b.textContent === text);
    const began = performance.now();
    found.rows = [all("tbody tr", table).length, status.textContent];
    button("Next").click();
    found.next = [cells(0)[0], status.textContent];
    button("observed").click();
    found.sorted = cells(1).map((v) => +v.replace("−", "-"));
    found.order = all("th", table.tHead).map((h) => h.ariaSort);
    button("observed").click();
    found.reversed = +cells(1)[0].replace("−", "-");
    found.milliseconds = performance.now() - began;
    found.disabled = [button("Previous").disabled, button("Next").disabled];
  }
  found.nodes = all("*").length;
  const out = document.createElement("pre");
  out.id = "found";
  out.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(found))));
  document.body.append(out);
});
"""


def tried(contents, folder, width, *flags):
    page = report.render(contents)
    page, changed = re.subn(r"<meta http-equiv=[^>]*>", lambda m: f"<script>{PROBE}</script>", page)
    assert changed == 1
    page = page.replace("</body>", f"<script>{ACTIONS}</script></body>")
    document, _ = browse(framed(page, width), folder, "--window-size=1400,900", *flags)
    return json.loads(base64.b64decode(re.search(r'<pre id="found">([^<]*)</pre>', document)[1]))


def many_methods(contents):
    """A comparison of all methods, whose table is the widest there is."""
    (row,), (fit,) = contents["table"], contents["fits"]
    scores = {name: [mean, 0.0317] for name, (mean, _) in row["metrics"].items()}
    rows = [row | {"method": name, "metrics": scores, "memory_mb": 123.4} for name in bl.ALGORITHMS]
    rows[3] = rows[3] | {"cut_short": "step 550 of 5000"}
    rows[-1] = rows[-1] | {"status": "failed", "reason": "It diverged at step 12. " * 6}
    fit = fit | {"method": rows[0]["method"]}
    about = {"kind": "comparison", "recommended": "map", "recommendation": "It is the best."}
    return contents | about | {"table": rows, "fits": [fit]}


@in_a_browser
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["regression", "classes", "comparison"])
def test_the_page_at_two_widths_light_and_dark(kind, scheme, width, contents, of_classes, tmp_path):
    shown = {
        "regression": lambda: contents,
        "classes": lambda: of_classes,
        "comparison": lambda: many_methods(contents),
    }[kind]()
    found = tried(shown, tmp_path, width, *([DARK] if scheme == "dark" else []))
    assert found["failures"] == []
    assert found["nan"] == []
    assert found["width"] == found["scroll"] == width
    assert found["beyond"] == 0
    assert found["wide"] == []
    assert found["contrast"] >= 4.5  # of WCAG AA, for text of ordinary size
    assert (found["page"] < 0.05) == (scheme == "dark")
    if kind == "regression":
        assert "Before and after calibration" in found["titles"]
        assert "Coverage by group" in found["titles"]


@in_a_browser
def test_ten_thousand_rows_without_lag(contents, tmp_path):
    fit = contents["fits"][0]
    times = 10_000 // ROWS
    every = {name: values * times for name, values in fit["every_row"].items()}
    every["row"] = list(range(1, 10_001))
    few = tried(contents, tmp_path, 1280)
    found = tried(contents | {"fits": [fit | {"every_row": every}]}, tmp_path, 1280)
    assert found["failures"] == []
    assert found["rows"] == [20, "Rows 1 to 20 of 10,000"]
    assert found["next"] == ["21", "Rows 21 to 40 of 10,000"] or found["next"][0] == "⚠ 21"
    assert found["sorted"] == [min(fit["every_row"]["observed"])] * 20
    assert found["reversed"] == pytest.approx(max(fit["every_row"]["observed"]), rel=1e-3)
    assert found["order"].count("ascending") == 1
    assert found["disabled"] == [True, False]
    # Rows that are not shown are no elements; what stands for them is a picture of cells.
    assert found["nodes"] < few["nodes"] + 2 * 44**2
    assert found["milliseconds"] < 1000  # about thirty on a quiet machine, for four actions
