  // The methods side by side

  const worth = (host) => {
    const good = contents.table.filter((row) => row.status === "ok" && row.seconds && row.seconds[0] > 0);
    const metric = "log_likelihood";
    const placed = good.filter((row) => row.metrics[metric] && row.metrics[metric][0] !== null);
    if (!placed.length) return;
    const quality = placed.map((row) => row.metrics[metric][0]);
    const high = Math.max(...quality), middle = quantile(quality, 0.5);
    const floor = Math.max(Math.min(...quality), high - 4 * Math.max(high - middle, 0.02));
    const [low, top] = range([floor, high], 0.12), seconds = placed.map((row) => row.seconds[0]);
    chart(host, {
      title: "Log-likelihood against cost",
      read: "Up is better, left is cheaper; on the line is the Pareto front: no other method is better and cheaper. Methods far below are drawn at the lower edge.",
      x: { label: "seconds to fit (logarithmic)", range: [0.7 * Math.min(...seconds), 1.6 * Math.max(...seconds)], isLog: true },
      y: { label: "log-likelihood per row", range: [low, top] },
      legend: [["dot", "k1", "recommended"], ["dot", "k0", "on the Pareto front"], ["dot", "k7", "others"], ...(floor > Math.min(...quality) ? [["triangle", "k7", "below the picture"]] : [])],
    }, (c) => {
      const front = placed.filter((row) => row.pareto && row.metrics[metric][0] >= low).sort((a, b) => a.seconds[0] - b.seconds[0]);
      c.line(front.map((row) => row.seconds[0]), front.map((row) => row.metrics[metric][0]), "k0 thin");
      const labels = [];
      const points = placed.map((row) => {
        const chosen = row.method === contents.recommended, [mean, error] = row.metrics[metric];
        const style = chosen ? "k1" : row.pareto ? "k0" : "k7";
        const px = c.sx(row.seconds[0]), py = c.sy(Math.max(mean, low));
        if (error && mean >= low) c.mark("path", { class: "axis", "stroke-opacity": 0.5, d: path(Array(2).fill(row.seconds[0]), [Math.max(low, mean - error), Math.min(top, mean + error)], c.sx, c.sy) });
        const node = mean < low ? c.mark("path", { class: `cell ${style}`, d: `M${px - 5} ${py - 9}h10l-5 9Z` })
          : c.dot(row.seconds[0], mean, style, chosen ? 6 : 4.5);
        if (chosen || row.pareto) {
          const width = 6.1 * row.method.length, right = px + 9 + width > WIDTH;
          const box = { left: right ? px - 9 - width : px + 9, top: py - 6, width };
          const free = (b) => labels.every((o) => b.left > o.left + o.width || o.left > b.left + b.width || Math.abs(b.top - o.top) > 11);
          for (const shift of [0, -11, 11, -22, 22]) if (free({ ...box, top: box.top + shift })) {
            box.top += shift;
            labels.push(box);
            c.mark("text", { class: "name", x: box.left, y: box.top + 10 }, row.method);
            break;
          }
        }
        return {
          x: px, y: py, node, choose: () => choose(row.method, true),
          tell: () => [make("b", {}, row.method), line(`log-likelihood ${show(mean)}${error ? ` ± ${show(error, 2)}` : ""}`), line(`${show(row.seconds[0], 3)} s`),
            ...(row.pareto ? [line("on the Pareto front: none is both better and cheaper")] : [])],
        };
      });
      withTooltips(c, points, null, "method");
    });
  };
  const cost = (host) => {
    const timed = fits.filter((fit) => fit.wall_time > 0).sort((a, b) => a.wall_time - b.wall_time);
    const isOne = timed.length === 1;
    if (timed.length) chart(host, {
      title: isOne ? "Cost of the fit" : "Cost of a fit",
      read: "Seconds of one fit. Compilation is paid once for tables of about the same size.",
      height: isOne ? 90 : Math.max(HEIGHT, 46 + 17 * timed.length), left: 124,
      x: { label: "seconds", range: [0, 1.04 * timed[timed.length - 1].wall_time] },
      y: { range: [timed.length - 0.4, -0.6], names: timed.map((fit) => clip(fit.method, 19)) },
      legend: [["area", "bar k3", "compilation"], ["area", "bar k0", "run"]],
    }, (c) => timed.forEach((fit, i) => {
      const compiling = Math.min(fit.compile_time || 0, fit.wall_time), tall = Math.min(16, 0.6 * (c.sy(1) - c.sy(0))), y = c.sy(i) - tall / 2;
      const said = `${fit.method}: ${show(fit.wall_time, 3)} s, of which ${show(compiling, 3)} s compilation`;
      c.mark("rect", { class: "bar k3", x: c.sx(0), width: c.sx(compiling) - c.sx(0), y, height: tall }, make("title", {}, said));
      c.mark("rect", { class: "bar k0", x: c.sx(compiling), width: c.sx(fit.wall_time) - c.sx(compiling), y, height: tall }, make("title", {}, said));
    }));
  };

  // Choosing a method; a panel is drawn when it is first shown, or printed

  const panels = new Map();
  const fill = (fit) => {
    const panel = panels.get(fit.method);
    if (panel.childElementCount) return panel;
    panel.append(make("h3", {}, fit.method));
    if (fit.error) {
      panel.append(make("p", { class: "story warn" }, `Its charts could not be drawn. ${fit.error}`));
      return panel;
    }
    panel.append(make("p", { class: "story" }, `${fit.family} over ${fit.weights.toLocaleString("en")} weights. ${fit.stopped} ${show(fit.wall_time, 3)} s, of which ${show(fit.compile_time, 3)} s compilation.`));
    const { chosen = {} } = contents.table.find((row) => row.method === fit.method) || {};
    if (Object.keys(chosen).length) panel.append(make("p", { class: "story" },
      `The budget allowed ${Object.entries(chosen).map(([name, v]) => `${name} ${v}`).join(", ")}.`));
    for (const note of fit.notes) panel.append(make("p", { class: "story" }, note));
    if (fit.chains && fit.chains.warning) panel.append(make("p", { class: "story warn" }, fit.chains.warning));
    if (fit.outputs > 1) panel.append(make("p", { class: "story" }, `y has ${fit.outputs} columns; the charts are of the first.`));
    const host = make("div", { class: "charts" }), group = {};
    panel.append(host);
    if (isRegression) observed(host, fit, group);
    else confusion(host, fit);
    where(host, fit, group);
    calibration(host, fit);
    beforeAfter(host, fit);
    coverage(host, fit);
    if (isRegression) intervals(host, fit, group);
    uncertainty(host, fit, group);
    importance(host, fit);
    run(host, fit);
    chains(host, fit);
    widths(host, fit);
    if (contents.kind === "fit") cost(host);
    everyRow(panel, fit);
    return panel;
  };
  const picker = document.getElementById("method");
  const choose = (name, go) => {
    const fit = fits.find((f) => f.method === name);
    if (!fit) return;
    hide();
    picker.value = name;
    for (const [other, panel] of panels) panel.hidden = other !== name;
    fill(fit);
    for (const row of document.querySelectorAll("#methods tbody tr")) row.classList.toggle("shown", row.dataset.method === name);
    if (go) {
      location.hash = `method=${encodeURIComponent(name)}`;
      document.getElementById("details").scrollIntoView();
      picker.focus({ preventScroll: true });
    }
  };
  const asked = () => {
    try { return decodeURIComponent((/^#method=(.*)/.exec(location.hash) || [])[1] || ""); } catch { return ""; }
  };

  const sortable = (table) => {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    let sorted = heads.find((head) => head.getAttribute("aria-sort") !== "none"), bestFirst = true;
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const { best, worst } = head.dataset; // what the order of the numbers is then
      const isBest = head !== sorted || !bestFirst;
      [sorted, bestFirst] = [head, isBest];
      for (const other of heads) other.setAttribute("aria-sort", other === head ? (isBest ? best : worst) : "none");
      const sign = isBest ? 1 : -1;
      const value = (row) => column ? row.cells[column].dataset.value : row.dataset.method;
      const rows = [...body.rows].sort((a, b) => {
        const failed = a.classList.contains("failed") - b.classList.contains("failed");
        if (failed || a.classList.contains("failed")) return failed;
        const [one, two] = [value(a), value(b)];
        if (!column) return sign * one.localeCompare(two);
        return (one === "") - (two === "") || sign * (one - two); // what has no number stays last
      });
      body.append(...rows);
    }));
    for (const button of table.querySelectorAll(".pick")) {
      const name = button.closest("tr").dataset.method;
      if (fits.some((fit) => fit.method === name)) button.addEventListener("click", () => choose(name, true));
      else button.replaceWith(name);
    }
  };

  const table = document.getElementById("methods");
  if (table) sortable(table);
  const section = document.getElementById("overview");
  if (contents.kind === "comparison") {
    worth(section.querySelector(".charts"));
    cost(section.querySelector(".charts"));
  }
  section.hidden = !section.querySelector("figure");
  if (fits.length) {
    document.getElementById("details").hidden = false;
    for (const fit of fits) {
      picker.append(make("option", { value: fit.method }, fit.method));
      const panel = make("div", { class: "panel", hidden: "" });
      panels.set(fit.method, panel);
      document.getElementById("panels").append(panel);
    }
    picker.closest("label").hidden = fits.length < 2;
    picker.addEventListener("change", () => choose(picker.value));
    const first = [asked(), contents.recommended, fits[0].method].find((name) => panels.has(name));
    choose(first);
    addEventListener("hashchange", () => choose(asked()));
    addEventListener("beforeprint", () => {
      fits.forEach(fill);
      for (const details of document.querySelectorAll("details")) details.open = true;
    });
  }
