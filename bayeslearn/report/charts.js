  // The charts of one method

  const luckOf = (share, rows) => 1.96 * Math.sqrt(share * (1 - share) / rows);
  const places = (values) => values.map((_, i) => i);

  const where = (host, fit, group) => {
    const w = fit.where, { rows } = fit;
    if (w.kind === "band") {
      const [low, high] = range([...w.low, ...w.high, ...w.heights]);
      chart(host, {
        title: w.is_whole ? `Prediction of ${clip(target, 24)}` : "Prediction along the main direction",
        read: w.is_whole ? "Nine in ten dots should lie in the pale band; the dark band, epistemic uncertainty of the mean, should widen where there are no data."
          : "A line through the middle of the data, along their first principal component; dots are held-out rows, adjusted for their other columns (partial residuals). Nine in ten should lie in the band.",
        x: { label: w.label, range: [w.at[0], w.at[w.at.length - 1]] },
        y: { label: target, range: [low, high] },
        legend: [["area", "area k0", "90 % of observations"], ["area", "bar k0", "90 % for the mean"], ["line", "k0", "mean"], ["dot", "k1", "held-out row"],
          ...(w.train[0].length ? [["dot", "past", "training row"]] : [])],
      }, (c) => {
        c.area(w.at, w.low, w.high, "area k0");
        c.area(w.at, w.inner_low, w.inner_high, "area k0");
        c.line(w.at, w.mean, "k0");
        w.train[0].forEach((at, i) => {
          const v = w.train[1][i];
          if (v >= low && v <= high) c.dot(at, v, "past", 2);
        });
        withTooltips(c, places(w.points).map((i) => ({
          x: c.sx(w.points[i]), y: c.sy(w.heights[i]), row: i, node: c.dot(w.points[i], w.heights[i], "k1"), tell: tellRow(fit, i),
        })), group, "row");
      });
    } else if (w.kind === "regions") {
      chart(host, {
        title: "Predicted classes",
        read: "Colours are the most probable class, paler where it is less probable; ringed dots are misclassified.",
        x: { label: w.labels[0], range: [w.low[0], w.high[0]] }, y: { label: w.labels[1], range: [w.low[1], w.high[1]] },
        legend: [...fit.classes.slice(0, 8).map((name, i) => ["dot", kind(i), clip(name, 24)]), ["ring", "", "misclassified"]],
      }, (c) => {
        const wide = (WIDTH - RIGHT - c.left) / w.side, tall = (c.height - BOTTOM - TOP) / w.side;
        const floor = 100 / fit.classes.length;
        for (let r = 0; r < w.side; r++) for (let from = 0; from < w.side;) {
          const level = (k) => Math.round(6 * Math.max(0, w.confidence[k] - floor) / (100 - floor));
          const first = r * w.side + from;
          let to = from + 1;
          while (to < w.side && w.classes[r * w.side + to] === w.classes[first] && level(r * w.side + to) === level(first)) to++;
          c.mark("rect", {
            class: `cell ${kind(w.classes[first])}`, "fill-opacity": (0.06 + 0.07 * level(first)).toFixed(2),
            x: (c.left + from * wide).toFixed(2), y: (c.height - BOTTOM - (r + 1) * tall).toFixed(2),
            width: ((to - from) * wide).toFixed(2), height: (tall + 0.2).toFixed(2),
          });
          from = to;
        }
        withTooltips(c, places(w.points[0]).map((i) => {
          const a = w.points[0][i], b = w.points[1][i], node = c.dot(a, b, kind(rows.observed[i]), 3.6);
          if (rows.predicted[i] !== rows.observed[i]) c.mark("circle", { class: "ring", cx: c.sx(a), cy: c.sy(b), r: 5.6 });
          return { x: c.sx(a), y: c.sy(b), row: i, node, tell: tellRow(fit, i) };
        }), group, "row");
      });
    } else {
      chart(host, {
        title: w.is_whole ? "Class probabilities" : "Probabilities along the main direction",
        read: `Curves lie near 0 or 1 where the prediction is certain. Dots are held-out rows at the probability given to their true class${w.is_whole ? "" : " (by all columns, so they need not lie on a curve)"}: the higher the better.`,
        x: { label: w.label, range: [w.at[0], w.at[w.at.length - 1]] },
        y: { label: "probability", range: [-0.03, 1.03], isShare: true },
        legend: w.classes.map((index) => ["line", kind(index), clip(fit.classes[index], 24)]),
      }, (c) => {
        w.classes.forEach((index, k) => c.line(w.at, w.probs[k], `${kind(index)}${index > 7 ? " dashed" : ""}`));
        withTooltips(c, places(w.points).map((i) => ({
          x: c.sx(w.points[i]), y: c.sy(rows.own[i]), row: i, node: c.dot(w.points[i], rows.own[i], kind(rows.observed[i])), tell: tellRow(fit, i),
        })), group, "row");
      });
    }
  };

  const calibration = (host, fit) => {
    const k = fit.calibration;
    if (isRegression) {
      chart(host, {
        title: "Calibration of the intervals",
        read: "The curve should follow the diagonal: below it intervals are too narrow, above it too wide.",
        x: { label: "level of the interval", range: [0, 1], isShare: true },
        y: { label: "coverage", range: [0, 1], isShare: true },
        legend: [["line", "k0", "this method"], ["guide", "", "calibrated"], ["area", "luck", "95 % by chance"]],
      }, (c) => {
        const away = k.levels.map((v) => luckOf(v, fit.num_rows));
        c.area(k.levels, k.levels.map((v, i) => Math.max(0, v - away[i])), k.levels.map((v, i) => Math.min(1, v + away[i])), "luck");
        c.mark("path", { class: "guide", d: path([0, 1], [0, 1], c.sx, c.sy) });
        c.line(k.levels, k.covered, "k0");
      });
      const total = fit.pit.reduce((a, b) => a + b, 0), each = fit.pit.length;
      const share = fit.pit.map((n) => n / total), away = luckOf(1 / each, total);
      chart(host, {
        title: "Probability integral transform (PIT)",
        read: "The histogram should be flat: a hump in the middle means intervals too wide, high ends too narrow, a slope biased predictions.",
        x: { label: "predictive CDF at the observation", range: [0, 1], isShare: true },
        y: { label: "held-out rows", range: [0, 1.08 * Math.max(...share, 1 / each + away)], isShare: true },
        legend: [["area", "bar k0", "this method"], ["guide", "", "calibrated"], ["area", "luck", "95 % by chance"]],
      }, (c) => {
        share.forEach((v, i) => c.mark("rect", {
          class: "bar k0", x: c.sx(i / each) + 1, width: c.sx(1 / each) - c.sx(0) - 2, y: c.sy(v), height: c.sy(0) - c.sy(v),
        }, make("title", {}, `${fit.pit[i]} of ${total} rows`)));
        c.area([0, 1], Array(2).fill(Math.max(0, 1 / each - away)), Array(2).fill(1 / each + away), "luck");
        c.mark("path", { class: "guide", d: path([0, 1], [1 / each, 1 / each], c.sx, c.sy) });
      });
      return;
    }
    const used = places(k.rows).filter((i) => k.rows[i] > 0), most = Math.max(...k.rows);
    chart(host, {
      title: "Calibration of the probabilities",
      read: "The dots should follow the diagonal: below it the method is overconfident. Large dots stand for many rows; bars are 95 % by chance.",
      x: { label: "probability of the predicted class", range: [0, 1], isShare: true },
      y: { label: "accuracy", range: [-0.03, 1.03], isShare: true },
      legend: [["dot", "k0", "this method"], ["guide", "", "calibrated"]],
    }, (c) => {
      c.mark("path", { class: "guide", d: path([0, 1], [0, 1], c.sx, c.sy) });
      for (const i of used) {
        const p = k.confidence[i], away = luckOf(p, k.rows[i]);
        c.mark("path", { class: "axis", d: path([p, p], [Math.max(0, p - away), Math.min(1, p + away)], c.sx, c.sy) });
      }
      c.line(used.map((i) => k.confidence[i]), used.map((i) => k.accuracy[i]), "k0 thin");
      for (const i of used) c.dot(k.confidence[i], k.accuracy[i], "k0", 3 + 5 * Math.sqrt(k.rows[i] / most))
        .append(make("title", {}, `${k.rows[i]} rows: probability ${percent(k.confidence[i])}, accuracy ${percent(k.accuracy[i])}`));
    });
    chart(host, {
      title: "Selective prediction",
      read: "Error rate when only the most certain rows are answered (risk-coverage curve): it should rise from the left.",
      x: { label: "fraction of rows answered, most certain first", range: [0, 1], isShare: true },
      y: { label: "error rate", range: [0, Math.max(0.05, 1.1 * Math.max(...fit.selective.risk))], isShare: true },
      legend: [["line", "k0", "this method"]],
    }, (c) => c.line(fit.selective.kept, fit.selective.risk, "k0"));
  };

  const intervals = (host, fit, group) => {
    const { rows } = fit;
    const order = places(rows.mean).sort((a, b) => rows.high[a] - rows.low[a] - rows.high[b] + rows.low[b]);
    const low = rows.low.map((v, i) => v - rows.mean[i]), high = rows.high.map((v, i) => v - rows.mean[i]);
    const residual = rows.observed.map((v, i) => v - rows.mean[i]);
    chart(host, {
      title: "Intervals by width",
      read: "Each row's 90 % interval and its residual, from narrow to wide: one in ten should be outside, and residuals should grow with the intervals.",
      x: { label: "held-out rows, by width of the interval", range: [-1, order.length], names: [] },
      y: { label: "observed − mean", range: range([...low, ...high, ...residual]) },
      legend: [["area", "area k0", "90 % interval"], ["dot", "k0", "inside"], ["cross", "k1", "outside"]],
    }, (c) => {
      c.mark("path", { class: "guide", d: path([-1, order.length], [0, 0], c.sx, c.sy) });
      order.forEach((i, at) => c.mark("path", { class: "span k0", d: path([at, at], [low[i], high[i]], c.sx, c.sy) }));
      withTooltips(c, order.map((i, at) => {
        const inside = residual[i] >= low[i] && residual[i] <= high[i];
        return {
          x: c.sx(at), y: c.sy(residual[i]), row: i, tell: tellRow(fit, i),
          node: inside ? c.dot(at, residual[i], "k0", 2.6) : c.cross(at, residual[i], "k1"),
        };
      }), group, "row");
    });
  };

  const uncertainty = (host, fit, group) => {
    const { rows } = fit;
    const order = places(rows.epistemic).sort((a, b) => rows.epistemic[a] - rows.epistemic[b]);
    const unit = isRegression ? `standard deviation of ${clip(target, 14)}` : "nats";
    chart(host, {
      title: "Epistemic and aleatoric uncertainty",
      read: isRegression ? "Epistemic uncertainty shrinks with more data; aleatoric uncertainty, the noise, does not. Rows are in order of the epistemic one."
        : "Epistemic uncertainty shrinks with more data; aleatoric uncertainty, the overlap of the classes, does not. Ringed rows are misclassified.",
      x: { label: "held-out rows, by epistemic uncertainty", range: [-1, order.length], names: [] },
      y: { label: unit, range: [0, range([...rows.epistemic, ...rows.aleatoric], 0.06)[1]] },
      legend: [["dot", "k0", "epistemic"], ["dot", "k3", "aleatoric"], ...(isRegression ? [] : [["ring", "", "misclassified"]])],
    }, (c) => {
      const points = [];
      order.forEach((i, at) => {
        for (const [name, style] of [["aleatoric", "k3"], ["epistemic", "k0"]]) {
          const v = rows[name][i];
          points.push({ x: c.sx(at), y: c.sy(v), row: i, node: c.dot(at, v, style, 2.6), tell: tellRow(fit, i) });
          if (!isRegression && name === "epistemic" && rows.predicted[i] !== rows.observed[i])
            c.mark("circle", { class: "ring", cx: c.sx(at), cy: c.sy(v), r: 4.8 });
        }
      });
      withTooltips(c, points, group, "row");
    });
  };

  const run = (host, fit) => {
    const t = fit.trace;
    if (!t || t.steps.length < 2) return;
    const isChains = t.kind === "chains", lines = isChains ? t.values : [t.values];
    const all = finite(lines.flat());
    if (!all.length) return;
    let [low, high] = range(all, 0.06);
    if (!isChains) low = Math.max(low, Math.min(quantile(all, 0.1), high - 2) - 0.3 * (high - quantile(all, 0.1)));
    chart(host, {
      title: isChains ? "Log-density of the chains" : `${t.label === "elbo" ? "ELBO" : t.label[0].toUpperCase() + t.label.slice(1)} during training`,
      read: isChains ? "Chains that agree look like one band of noise, without drift and without steps."
        : "It should rise and level off; if it still rises at the end, more steps would help. The first steps may lie below the visible range.",
      x: { label: isChains ? "draw" : "step", range: [t.steps[0], t.steps[t.steps.length - 1]] },
      y: { label: t.label === "elbo" ? "ELBO (nats)" : t.label, range: [low, high] },
      legend: isChains ? lines.map((_, i) => ["line", kind(i), `chain ${i + 1}`]) : [["line", "k0", "at evaluations"], ...(t.result === null ? [] : [["line", "k1 dashed", "of the result"]])],
    }, (c) => {
      lines.forEach((values, i) => c.line(t.steps, values, `${kind(i)}${isChains ? " thin" : ""}`));
      if (t.result !== null && t.result !== undefined && t.result >= low && t.result <= high)
        c.mark("path", { class: "line k1 dashed", d: path([t.steps[0], t.steps[t.steps.length - 1]], [t.result, t.result], c.sx, c.sy) });
    });
  };

  const chains = (host, fit) => {
    const k = fit.chains;
    if (!k) return;
    if (k.error) { host.append(make("figure", {}, make("h4", {}, "R-hat and effective sample sizes"), make("figcaption", {}, k.error))); return; }
    const all = [...k.predictions.rhat, ...k.weights.rhat];
    const table = (rows) => make("table", { class: "facts" }, make("thead", {}, make("tr", {}, ...["", "worst R-hat", "least bulk ESS", "least tail ESS"].map((h) => make("th", { scope: "col" }, h)))),
      make("tbody", {}, ...rows.map(([head, ...cells]) => make("tr", {}, make("th", { scope: "row" }, head), ...cells.map((v) => make("td", {}, show(v)))))));
    const worst = (part) => part.rhat.length ? part.rhat[part.rhat.length - 1] : null;
    const facts = make("div", { class: "scroll" }, table([
      ["predictions", worst(k.predictions), k.predictions.ess_bulk, k.predictions.ess_tail],
      ["weights", worst(k.weights), k.weights.ess_bulk, k.weights.ess_tail],
      ["log-density", k.rhat_log_density, null, null]]));
    const said = make("p", { class: "small" }, `${k.chains} chains, ${k.draws} draws in all, ${k.divergences} divergences.`);
    const title = "R-hat and effective sample sizes";
    if (!all.length) { host.append(make("figure", {}, make("h4", {}, title), make("figcaption", {}, "R-hat needs several chains and at least four draws."), make("div", {}, facts, said))); return; }
    const below = chart(host, {
      title,
      read: "R-hat of the predictions should stay below the limit; weights may lie above it, since hidden units can swap places.",
      x: { label: "quantities, by R-hat", range: [0, 1], isShare: true },
      y: { label: "R-hat", range: range([...all, k.limit, 1]) },
      legend: [["dot", "k0", "predictions"], ["cross", "k3", "weights"], ["line", "k1 dashed", `limit ${k.limit}`]],
    }, (c) => {
      const at = (i, n) => n > 1 ? i / (n - 1) : 0.5;
      k.weights.rhat.forEach((v, i, own) => c.cross(at(i, own.length), v, "k3", 2.4));
      k.predictions.rhat.forEach((v, i, own) => c.dot(at(i, own.length), v, "k0", 3));
      c.mark("path", { class: "line k1 dashed", d: path([0, 1], [k.limit, k.limit], c.sx, c.sy) });
    });
    below.append(facts, said);
  };

  const widths = (host, fit) => {
    const leaves = fit.widths || [];
    if (!leaves.length) return;
    const from = leaves.length - 1, all = leaves.flatMap((w) => [...w.quantiles, w.prior]).filter((v) => v > 0);
    const most = Math.max(...all), least = Math.max(Math.min(...all), 1e-4 * most);
    chart(host, {
      title: "Posterior std of the weights by layer",
      read: "Posterior standard deviations: boxes span the middle half of the weights, lines nine in ten. A layer as wide as its prior has learned little.",
      height: Math.max(HEIGHT, 46 + 26 * leaves.length), left: 112,
      x: { label: "standard deviation of a weight", range: [0.8 * least, 1.25 * most], isLog: true },
      y: { range: [-0.6, from + 0.6], names: leaves.map((w) => clip(w.name, 17)).reverse() },
      legend: [["area", "area k0", "weights of the layer"], ["diamond", "k1", "prior"]],
    }, (c) => leaves.forEach((w, i) => {
      const [a, b, m, d, e] = w.quantiles.map((v) => c.sx(Math.max(v, least))), y = c.sy(from - i);
      c.mark("path", { class: "line k0 thin", d: `M${a} ${y}H${e}` });
      c.mark("rect", { class: "bar k0", x: b, width: Math.max(2, d - b), y: y - 7, height: 14 },
        make("title", {}, `${w.name}: ${w.weights} weights, middle ${show(w.quantiles[2], 3)}`));
      c.mark("path", { class: "axis", d: `M${m} ${y - 7}V${y + 7}` });
      if (w.prior > 0) c.mark("path", { class: "cross k1", d: `M${c.sx(w.prior)} ${y - 6}l5 6l-5 6l-5 -6Z` });
    }));
  };
