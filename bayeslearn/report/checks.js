  // Observed against predicted, coverage by part of the table, importance, calibration, all rows

  const CELLS = 44, PAGE_ROWS = 20;

  const observed = (host, fit, group) => {
    const { rows } = fit, all = fit.every_row || rows;
    const [low, high] = range([...all.observed, ...all.mean]);
    const axis = (label) => ({ label, range: [low, high] });
    const dots = (c, xs, ys) => withTooltips(c, places(xs).map((i) => ({
      x: c.sx(xs[i]), y: c.sy(ys[i]), row: i, node: c.dot(xs[i], ys[i], "k1", 3), tell: tellRow(fit, i),
    })), group, "row");
    const many = all.mean.length > rows.mean.length;
    const legend = [["dot", "k1", "held-out row"], ...(many ? [["area", "bar k0", `all ${all.mean.length.toLocaleString("en")} rows, darker where there are more`]] : [])];
    const { r2, rmse } = contents.kind === "fit" ? contents.table[0].metrics : {};
    const score = r2 && r2[0] !== null ? ` R² ${show(r2[0], 3)}, RMSE ${show(rmse[0], 3)}.` : "";
    chart(host, {
      title: "Observed against predicted", read: `Dots should lie along the diagonal.${score}`,
      x: axis(`predicted mean of ${clip(target, 30)}`), y: axis("observed"), legend: [...legend, ["guide", "", "observed = predicted"]],
    }, (c) => {
      if (many) cells(c, all.mean, all.observed);
      c.mark("path", { class: "guide", d: path([low, high], [low, high], c.sx, c.sy) });
      dots(c, rows.mean, rows.observed);
    });
    const residual = (part) => part.observed.map((v, i) => v - part.mean[i]);
    chart(host, {
      title: "Residuals", read: "They should scatter around zero: a trend means that the mean is biased, a funnel that the noise is not constant.",
      x: { label: "predicted mean", range: range(all.mean) }, y: { label: "observed − predicted", range: range(residual(all)) }, legend: [...legend, ["guide", "", "zero"]],
    }, (c) => {
      if (many) cells(c, all.mean, residual(all));
      c.mark("path", { class: "guide", d: `M${c.left} ${c.sy(0)}H${WIDTH - RIGHT}` });
      dots(c, rows.mean, residual(rows));
    });
  };

  // Thousands of points as a few hundred rectangles
  const cells = (c, xs, ys) => {
    const wide = (WIDTH - RIGHT - c.left) / CELLS, tall = (c.height - BOTTOM - TOP) / CELLS, counts = new Map();
    xs.forEach((v, i) => {
      if (v === null || ys[i] === null) return;
      const at = Math.floor((c.sx(v) - c.left) / wide) + 1000 * Math.floor((c.sy(ys[i]) - TOP) / tall);
      counts.set(at, (counts.get(at) || 0) + 1);
    });
    const most = Math.max(...counts.values());
    for (const [at, n] of counts) c.mark("rect", {
      class: "bar k0", "fill-opacity": (0.12 + 0.6 * Math.sqrt(n / most)).toFixed(2), width: wide.toFixed(2), height: tall.toFixed(2),
      x: (c.left + at % 1000 * wide).toFixed(2), y: (TOP + Math.floor(at / 1000) * tall).toFixed(2),
    });
  };

  const coverage = (host, fit) => {
    const parts = fit.deciles || [];
    if (parts.length) {
      const name = isRegression ? "predicted mean" : "confidence", what = isRegression ? "Coverage" : "Accuracy";
      chart(host, {
        title: parts.length === 10 ? `${what} by decile of the ${name}` : `${what} by ${name}`,
        read: isRegression ? "Fraction of observations inside their 90 % interval, from the lowest to the highest predictions: coverage that is right on average may be wrong in parts."
          : "Accuracy beside the mean predicted probability, from the least to the most confident rows.",
        x: { label: `${parts.length === 10 ? "decile" : "part"} of the ${name}`, range: [0.4, parts.length + 0.6] },
        y: { label: what.toLowerCase(), range: [Math.max(0, Math.min(...parts.map((p) => Math.min(p.good, p.expected - luckOf(p.expected, p.rows)))) - 0.06), 1.03], isShare: true },
        legend: [["dot", "k0", "this method"], ["guide", "", isRegression ? "90 %" : "predicted probability"], ["line", "k7 thin", "95 % by chance"]],
      }, (c) => {
        c.mark("path", { class: "guide", d: path(parts.map((_, i) => i + 1), parts.map((p) => p.expected), c.sx, c.sy) });
        withTooltips(c, parts.map((p, i) => {
          const away = luckOf(p.expected, p.rows);
          c.mark("path", { class: "axis", d: path([i + 1, i + 1], [Math.max(0, p.expected - away), Math.min(1, p.expected + away)], c.sx, c.sy) });
          return {
            x: c.sx(i + 1), y: c.sy(p.good), node: c.dot(i + 1, p.good, "k0", 4.5),
            tell: () => [make("b", {}, `${name} ${show(p.from)} to ${show(p.to)}`), line(`${what.toLowerCase()} ${percent(p.good)} of ${p.rows} rows, expected ${percent(p.expected)}`)],
          };
        }), null, "part");
      });
    }
    const groups = fit.groups || [];
    if (!groups.length) return;
    const what = isRegression ? "coverage" : "accuracy";
    const body = groups.map((g) => {
      const away = luckOf(g.expected, g.rows), outside = Math.abs(g.good - g.expected) > away + 1e-9;
      const near = `${percent(Math.max(0, g.expected - away))} to ${percent(Math.min(1, g.expected + away))}`;
      return make("tr", {}, make("th", { scope: "row" }, g.name), make("td", {}, String(g.rows)),
        make("td", outside ? { class: "outside" } : {}, `${outside ? "⚠ " : ""}${percent(g.good)}`), make("td", {}, near));
    });
    host.append(make("figure", {}, make("h4", {}, isRegression ? "Coverage by group" : "Accuracy by group"),
      make("figcaption", {}, `By the values of columns with few different ones${isRegression ? "" : ", and by predicted class"}. ⚠ marks a group outside the range of a calibrated method in 95 of 100 cases; of many groups, a few are outside by chance.`),
      make("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": `${what} by group` },
        make("table", { class: "facts" }, make("thead", {}, make("tr", {}, ...["group", "rows", what, "calibrated"].map((h) => make("th", { scope: "col" }, h)))), make("tbody", {}, ...body))),
      make("div", {})));
  };

  const confusion = (host, fit) => {
    const k = fit.confusion;
    if (!k) return;
    const total = k.map((row) => row.reduce((a, b) => a + b, 0));
    const head = make("tr", {}, make("th", { scope: "col" }, "observed ↓ predicted →"), ...fit.classes.map((name) => make("th", { scope: "col" }, clip(name, 18))));
    const rows = k.map((counts, i) => make("tr", {}, make("th", { scope: "row" }, clip(fit.classes[i], 18)), ...counts.map((n, j) =>
      make("td", n ? { class: `share ${i === j ? "k0" : "k1"} s${Math.ceil(5 * n / total[i])}` } : {}, n.toLocaleString("en")))));
    host.append(make("figure", {}, make("h4", {}, "Observed against predicted"),
      make("figcaption", {}, "Confusion matrix: held-out rows by observed and predicted class, darker where they are a larger fraction of the observed class."),
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Confusion matrix" }, make("table", { class: "facts" }, make("thead", {}, head), make("tbody", {}, ...rows))), make("div", {})));
  };

  const importance = (host, fit) => {
    const k = fit.importance;
    if (!k || !k.names.length) return;
    const of = (name, values, title, read, label) => chart(host, {
      title, read, left: 112, height: Math.max(HEIGHT, 46 + 17 * values.length),
      x: { label, range: [Math.min(0, ...values), 1.06 * Math.max(...values, 1e-12)] },
      y: { range: [values.length - 0.4, -0.6], names: k.names.map((n) => clip(n, 17)) },
    }, (c) => withTooltips(c, values.map((v, i) => {
      const tall = Math.min(14, 0.7 * (c.sy(1) - c.sy(0))), from = c.sx(Math.min(0, v));
      const node = c.mark("rect", { class: `bar ${name}`, x: from, width: Math.max(1, c.sx(Math.max(0, v)) - from), y: c.sy(i) - tall / 2, height: tall });
      return { x: c.sx(v), y: c.sy(i), node, tell: () => [make("b", {}, k.names[i]), line(`${label}: ${show(v, 3)}`)] };
    }), null, "column"));
    // Bars of length zero would show nothing.
    const isPoint = !k.epistemic.some((v) => v !== 0);
    const rest = (k.left_out ? ` ${k.left_out} more columns were left out.` : "")
      + (isPoint ? " The epistemic uncertainty has no chart: it is zero, since this method learns a single set of weights." : "");
    of("k0", k.error, isRegression ? "Permutation importance: mean" : "Permutation importance: probabilities",
      `How much worse predictions become when a column is shuffled among ${k.rows} held-out rows; correlated columns share their importance.${rest}`,
      isRegression ? "increase of RMSE" : "increase of log loss (nats)");
    if (isPoint) return;
    of("k3", k.epistemic, "Permutation importance: epistemic uncertainty",
      "How much the epistemic uncertainty of a row changes when the column is shuffled (root mean square), columns in the same order.",
      isRegression ? "change of the epistemic std" : "change of the mutual information (nats)");
  };

  const beforeAfter = (host, fit) => {
    const before = fit.before;
    if (!before) return;
    const [b, a] = [before.calibration, fit.calibration];
    chart(host, {
      title: "Before and after calibration",
      read: before.after ? "Conformal calibration changes the prediction sets and not the probabilities, so both curves are the same." : "What calibration changed on the held-out rows; the curve after it should be nearer to the diagonal.",
      x: { label: isRegression ? "level of the interval" : "probability of the predicted class", range: [0, 1], isShare: true },
      y: { label: isRegression ? "coverage" : "accuracy", range: [-0.03, 1.03], isShare: true },
      legend: [["line", "k3 dashed", "before"], ["line", "k0", "after"], ["guide", "", "calibrated"]],
    }, (c) => {
      c.mark("path", { class: "guide", d: path([0, 1], [0, 1], c.sx, c.sy) });
      const draw = (k, style) => {
        if (isRegression) return c.line(k.levels, k.covered, style);
        const used = places(k.rows).filter((i) => k.rows[i] > 0);
        return c.line(used.map((i) => k.confidence[i]), used.map((i) => k.accuracy[i]), style);
      };
      draw(b, "k3 dashed"); draw(a, "k0");
    }).append(beforeTable(fit));
  };
  const NAMES = { rmse: "RMSE", accuracy: "accuracy", log_likelihood: "log-likelihood", coverage90: "90 % coverage", ece: "ECE", crps: "CRPS", brier: "Brier", r2: "R²", set_coverage90: "90 % sets that hold the class", set_size90: "mean size of the 90 % sets" };
  const beforeTable = (fit) => {
    const after = fit.before.after ? Object.fromEntries(Object.entries(fit.before.after).map(([name, v]) => [name, [v]])) : (contents.table.find((row) => row.method === fit.method) || { metrics: {} }).metrics;
    const text = (name, v) => v === null || v === undefined ? "–" : ["accuracy", "coverage90", "ece", "set_coverage90"].includes(name) ? percent(v) : show(v);
    return make("table", { class: "facts" }, make("thead", {}, make("tr", {}, ...["score", "before", "after"].map((h) => make("th", { scope: "col" }, h)))),
      make("tbody", {}, ...Object.entries(fit.before.metrics).map(([name, v]) => make("tr", {}, make("th", { scope: "row" }, NAMES[name] || name),
        make("td", {}, text(name, v)), make("td", {}, text(name, (after[name] || [null])[0]))))));
  };

  // A page of rows at a time, so that ten thousand cost no more than twenty.
  const everyRow = (panel, fit) => {
    const k = fit.every_row;
    if (!k) return;
    const name = (i) => fit.classes[i];
    const columns = isRegression ? [
      ["row", (i) => k.row[i], String], ["observed", (i) => k.observed[i], show], ["predicted", (i) => k.mean[i], show],
      ["90 % from", (i) => k.low[i], show], ["90 % to", (i) => k.high[i], show], ["epistemic std", (i) => k.epistemic[i], (v) => show(v, 3)],
      ["residual", (i) => k.observed[i] - k.mean[i], (v) => show(v, 3)],
    ] : [
      ["row", (i) => k.row[i], String], ["observed", (i) => name(k.observed[i]), String], ["predicted", (i) => name(k.predicted[i]), String],
      ["probability", (i) => k.prob[i], percent], ["epistemic (nats)", (i) => k.epistemic[i], (v) => show(v, 3)],
    ];
    const isMissed = (i) => isRegression ? k.observed[i] < k.low[i] || k.observed[i] > k.high[i] : k.predicted[i] !== k.observed[i];
    let order = places(k.row), page = 0, sorted = 0, sign = 1;
    const body = make("tbody", {}), status = make("span", { role: "status" });
    const heads = columns.map(([label], j) => make("th", { scope: "col", "aria-sort": j ? "none" : "ascending" }, make("button", { type: "button" }, label)));
    const button = (text, step) => {
      const made = make("button", { type: "button", class: "turn" }, text);
      made.addEventListener("click", () => { page += step; fillRows(); });
      return made;
    };
    const back = button("Previous", -1), next = button("Next", 1);
    const fillRows = () => {
      const from = page * PAGE_ROWS, shown = order.slice(from, from + PAGE_ROWS);
      body.replaceChildren(...shown.map((i) => make("tr", isMissed(i) ? { class: "missed" } : {}, ...columns.map(([, value, text], j) =>
        make(j ? "td" : "th", j ? {} : { scope: "row" }, `${!j && isMissed(i) ? "⚠ " : ""}${text(value(i))}`)))));
      back.disabled = page === 0;
      next.disabled = from + PAGE_ROWS >= order.length;
      status.textContent = `Rows ${(from + 1).toLocaleString("en")} to ${(from + shown.length).toLocaleString("en")} of ${order.length.toLocaleString("en")}`;
    };
    heads.forEach((head, j) => head.firstChild.addEventListener("click", () => {
      [sign, sorted, page] = [j === sorted ? -sign : 1, j, 0];
      const values = places(k.row).map(columns[j][1]);
      order = places(k.row).sort((a, b) => sign * (typeof values[a] === "string" ? values[a].localeCompare(values[b]) : values[a] - values[b]));
      heads.forEach((other, m) => other.setAttribute("aria-sort", m !== j ? "none" : sign > 0 ? "ascending" : "descending"));
      fillRows();
    }));
    fillRows();
    const missed = order.filter(isMissed).length;
    panel.append(make("h4", { class: "rows-title" }, "Held-out rows"),
      make("p", { class: "small" }, `Click a heading to sort. ⚠ marks ${isRegression ? "observations outside their 90 % interval" : "misclassified rows"}: ${missed.toLocaleString("en")} of ${order.length.toLocaleString("en")}.`),
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Held-out rows" }, make("table", { class: "rows" }, make("thead", {}, make("tr", {}, ...heads)), body)),
      make("p", { class: "turns" }, back, next, status));
  };
