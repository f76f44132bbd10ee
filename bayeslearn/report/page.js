"use strict";
(() => {
  const contents = JSON.parse(document.getElementById("contents").textContent);
  const fits = contents.fits || [];
  const isRegression = contents.task === "regression";
  const target = contents.settings.target || "y";
  const tip = document.getElementById("tip");
  const WIDTH = 360, HEIGHT = 236, LEFT = 66, RIGHT = 17, TOP = 8, BOTTOM = 38;

  // Making elements. Text is only ever set as text, so that no name can become markup.

  const make = (tag, attributes = {}, ...children) => {
    const svg = ["svg", "g", "path", "line", "rect", "circle", "text", "title", "clipPath"].includes(tag);
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag)
      : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
  const short = (v) => compact.format(v).replace("-", "−");
  const show = (v, digits = 4) => {
    if (v === null || v === undefined) return "–";
    const size = Math.abs(v);
    if (size >= 1e6 || (size > 0 && size < 1e-3)) return v.toExponential(1).replace("-", "−");
    return String(+v.toPrecision(digits)).replace("-", "−");
  };
  const percent = (v) => `${show(100 * v, 3)} %`;
  const finite = (values) => values.filter((v) => v !== null && Number.isFinite(v));
  const range = (values, room = 0.04) => {
    const found = finite(values);
    if (!found.length) return [0, 1];
    let low = Infinity, high = -Infinity;
    for (const v of found) { low = Math.min(low, v); high = Math.max(high, v); }
    const space = room * (high - low) || 0.1 * Math.abs(high) || 1;
    return [low - space, high + space];
  };
  const quantile = (values, q) => {
    const sorted = finite(values).sort((a, b) => a - b);
    return sorted.length ? sorted[Math.round(q * (sorted.length - 1))] : 0;
  };

  // Axes and charts

  const ticks = (low, high, isLog, most) => {
    const found = [];
    if (isLog) {
      const decades = high - low;
      const steps = decades > 3 ? [1] : decades > 1.2 ? [1, 3] : [1, 2, 5];
      for (let k = Math.floor(low); k <= high; k += Math.ceil(decades / 8))
        for (const s of steps) {
          const at = k + Math.log10(s);
          if (at >= low && at <= high) found.push([at, 10 ** k * s]);
        }
      return found;
    }
    const raw = (high - low) / most, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((s) => s * power).find((s) => s >= raw);
    for (let k = Math.ceil(low / step); k * step <= high + 1e-9 * step; k++) found.push([k * step, k * step || 0]);
    return found;
  };

  // A figure with axes. `x` and `y`: {label, range, isLog, names, isShare}; `draw` gets the chart.
  const chart = (host, { title, read, x, y, legend = [], height = HEIGHT, left = LEFT }, draw) => {
    const svg = make("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": `${title}. ${read}` });
    const of = (axis, from, to) => {
      const place = axis.isLog ? Math.log10 : (v) => v;
      const [low, high] = axis.range.map(place);
      const scale = (v) => from + (place(v) - low) / (high - low || 1) * (to - from);
      scale.low = low; scale.high = high;
      return scale;
    };
    const sx = of(x, left, WIDTH - RIGHT), sy = of(y, height - BOTTOM, TOP);
    const label = (axis, v) => axis.isShare ? `${Math.round(100 * v)} %` : short(v);
    for (const [at, v] of x.names ? [] : ticks(sx.low, sx.high, x.isLog, 6)) {
      const px = left + (at - sx.low) / (sx.high - sx.low || 1) * (WIDTH - RIGHT - left);
      svg.append(make("line", { class: "grid", x1: px, x2: px, y1: TOP, y2: height - BOTTOM }),
        make("text", { x: px, y: height - BOTTOM + 14, "text-anchor": "middle" }, label(x, v)));
    }
    for (const [at, v] of y.names ? [] : ticks(sy.low, sy.high, y.isLog, 6)) {
      const py = height - BOTTOM + (at - sy.low) / (sy.high - sy.low || 1) * (TOP - height + BOTTOM);
      svg.append(make("line", { class: "grid", x1: left, x2: WIDTH - RIGHT, y1: py, y2: py }),
        make("text", { x: left - 5, y: py + 4, "text-anchor": "end" }, label(y, v)));
    }
    (y.names || []).forEach((name, i) => svg.append(
      make("text", { class: "name", x: left - 6, y: sy(i) + 4, "text-anchor": "end" }, name)));
    svg.append(
      make("line", { class: "axis", x1: left, x2: WIDTH - RIGHT, y1: height - BOTTOM, y2: height - BOTTOM }),
      make("text", { x: (left + WIDTH - RIGHT) / 2, y: height - 6, "text-anchor": "middle" }, clip(x.label, 56)));
    if (y.label) svg.append(make("text", {
      transform: `translate(11 ${(TOP + height - BOTTOM) / 2}) rotate(-90)`, "text-anchor": "middle",
    }, clip(y.label, 34)));
    const id = `plot${++count}`;
    const plot = make("g");
    svg.append(make("clipPath", { id }, make("rect", { x: left, y: TOP, width: WIDTH - RIGHT - left, height: height - BOTTOM - TOP })), plot);
    const mark = (tag, attributes, ...children) => plot.appendChild(make(tag, attributes, ...children));
    const api = {
      svg, sx, sy, mark, left, height,
      line: (xs, ys, style) => mark("path", { class: `line ${style}`, d: path(xs, ys, sx, sy), "clip-path": `url(#${id})` }),
      area: (xs, lows, highs, style) => mark("path", {
        class: style, d: `${path(xs, lows, sx, sy)}L${path([...xs].reverse(), [...highs].reverse(), sx, sy).slice(1)}Z`,
      }),
      dot: (a, b, style, r = 3.2) => mark("circle", { class: `dot ${style}`, cx: sx(a), cy: sy(b), r }),
      cross: (a, b, style, r = 3.4) => {
        const px = sx(a), py = sy(b);
        return mark("path", { class: `cross ${style}`, d: `M${px - r} ${py - r}l${2 * r} ${2 * r}m0 ${-2 * r}l${-2 * r} ${2 * r}` });
      },
    };
    const below = make("div", {});
    if (legend.length) below.append(make("ul", { class: "legend" }, ...legend.map(key)));
    host.append(make("figure", {}, make("h4", {}, title), make("figcaption", {}, read), svg, below));
    draw(api);
    return below;
  };
  let count = 0;
  const clip = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;
  const path = (xs, ys, sx, sy) => {
    let told = "", pen = "M";
    xs.forEach((v, i) => {
      if (v === null || ys[i] === null) { pen = "M"; return; }
      told += `${pen}${sx(v).toFixed(1)} ${sy(ys[i]).toFixed(1)}`;
      pen = "L";
    });
    return told || "M0 0";
  };
  const key = ([shape, style, text]) => {
    const drawn = {
      line: () => make("path", { class: `line ${style}`, d: "M0 6H18" }),
      guide: () => make("path", { class: "guide", d: "M0 6H18" }),
      area: () => make("rect", { class: style, width: 18, height: 12 }),
      dot: () => make("circle", { class: `dot ${style}`, cx: 9, cy: 6, r: 4 }),
      ring: () => make("circle", { class: "ring", cx: 9, cy: 6, r: 4.5 }),
      cross: () => make("path", { class: `cross ${style}`, d: "M5 2l8 8m0 -8l-8 8" }),
      diamond: () => make("path", { class: `cross ${style}`, d: "M9 1l5 5l-5 5l-5 -5Z" }),
      triangle: () => make("path", { class: `cell ${style}`, d: "M4 2h10l-5 9Z" }),
    }[shape]();
    return make("li", {}, make("svg", { viewBox: "0 0 18 12", "aria-hidden": "true" }, drawn), text);
  };

  // Points that can be asked: `points` are {x, y (pixels), node, tell()}; `group` links the charts
  // of a method, where the same row is marked in all of them.

  const hide = () => {
    tip.hidden = true;
    for (const node of document.querySelectorAll("svg .on")) node.classList.remove("on");
  };
  const askable = (chartApi, points, group, what) => {
    const { svg } = chartApi;
    const order = points.map((_, i) => i).sort((a, b) => points[a].x - points[b].x || points[a].y - points[b].y);
    let current = -1;
    svg.setAttribute("tabindex", "0");
    svg.setAttribute("role", "group");
    svg.setAttribute("aria-roledescription", "chart");
    svg.setAttribute("aria-label", `${svg.getAttribute("aria-label")} Arrow keys go from ${what} to ${what}.`);
    for (const point of points) if (group && point.row !== undefined)
      (group[point.row] = group[point.row] || []).push(point.node);
    const tell = (index) => {
      hide();
      current = index;
      const point = points[index];
      for (const node of group && point.row !== undefined ? group[point.row] : [point.node]) node.classList.add("on");
      tip.replaceChildren(...point.tell());
      tip.hidden = false;
      const box = svg.getBoundingClientRect(), scale = box.width / WIDTH;
      const px = box.left + point.x * scale, py = box.top + point.y * scale;
      const { offsetWidth: w, offsetHeight: h } = tip;
      const room = document.documentElement.clientWidth;
      tip.style.left = `${Math.max(4, px + 14 + w > room ? Math.min(px - 14 - w, room - w - 4) : px + 14)}px`;
      tip.style.top = `${Math.max(4, Math.min(py - h / 2, window.innerHeight - h - 4))}px`;
    };
    const nearest = (event) => {
      const box = svg.getBoundingClientRect(), scale = box.width / WIDTH;
      const px = (event.clientX - box.left) / scale, py = (event.clientY - box.top) / scale;
      let found = -1, least = 28 ** 2;
      points.forEach((p, i) => {
        const away = (p.x - px) ** 2 + (p.y - py) ** 2;
        if (away < least) { least = away; found = i; }
      });
      return found;
    };
    const follow = (event) => {
      const found = nearest(event);
      if (found < 0) { hide(); current = -1; } else if (found !== current || tip.hidden) tell(found);
    };
    svg.addEventListener("pointermove", follow);
    svg.addEventListener("pointerdown", follow);
    svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
    svg.addEventListener("blur", hide);
    svg.addEventListener("click", (event) => {
      const found = nearest(event);
      if (found >= 0 && points[found].choose) points[found].choose();
    });
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const place = order.indexOf(current);
      if (step && order.length) {
        event.preventDefault();
        tell(order[place < 0 ? 0 : (place + step + order.length) % order.length]);
      } else if (event.key === "Home" || event.key === "End") {
        event.preventDefault();
        tell(order[event.key === "Home" ? 0 : order.length - 1]);
      } else if (event.key === "Enter" && current >= 0 && points[current].choose) points[current].choose();
    });
  };
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  document.addEventListener("scroll", hide, { passive: true });

  // One row's predictive distribution

  const density = (rows, i) => {
    const bins = rows.bins[i], most = Math.max(...bins), reach = 3.5;
    const place = (v) => 4 + 192 * Math.min(1, Math.max(0, (v - rows.mean[i]) / (rows.std[i] || 1) / reach / 2 + 0.5));
    const svg = make("svg", { viewBox: "0 0 200 66", "aria-hidden": "true" });
    const wide = 192 / bins.length;
    const from = place(rows.low[i]), to = place(rows.high[i]);
    svg.append(make("rect", { class: "luck", x: from, y: 2, width: Math.max(0, to - from), height: 50 }));
    bins.forEach((b, k) => svg.append(make("rect", {
      class: "bar k0", x: 4 + k * wide, y: 52 - 48 * b / (most || 1), width: wide - 0.6, height: 48 * b / (most || 1),
    })));
    const at = place(rows.observed[i]);
    svg.append(make("line", { class: "axis", x1: 4, x2: 196, y1: 52, y2: 52 }),
      make("path", { class: "line k1", d: `M${at} 2V52` }));
    svg.append(make("text", { x: 4, y: 64 }, short(rows.mean[i] - reach * rows.std[i])),
      make("text", { x: 196, y: 64, "text-anchor": "end" }, short(rows.mean[i] + reach * rows.std[i])));
    return svg;
  };
  const classBars = (fit, i) => {
    const told = fit.rows.probs[i];
    const svg = make("svg", { viewBox: `0 0 200 ${told.length * 16 + 2}`, "aria-hidden": "true" });
    told.forEach(([label, share], k) => {
      const own = label === fit.rows.observed[i];
      svg.append(make("text", { class: own ? "name" : "", x: 70, y: k * 16 + 12, "text-anchor": "end" }, `${own ? "✓ " : ""}${clip(fit.classes[label], 11)}`),
        make("rect", { class: `bar ${kind(label)}`, x: 74, y: k * 16 + 3, width: Math.max(1, 0.088 * share), height: 11 }),
        make("text", { x: 78 + 0.088 * share, y: k * 16 + 12 }, `${show(share / 10, 3)} %`));
    });
    return svg;
  };
  const kind = (index) => `k${index % 8}`;
  const line = (text) => make("div", {}, text);
  const tellRow = (fit, i) => () => {
    const { rows } = fit;
    const head = make("b", {}, `Held-out row ${rows.row[i]}`);
    if (isRegression) return [head, density(rows, i),
      line(`observed ${show(rows.observed[i])} (line)`), line(`mean ${show(rows.mean[i])}, sd ${show(rows.std[i], 3)}`),
      line(`90 %: ${show(rows.low[i])} to ${show(rows.high[i])} (shaded)`),
      line(`epistemic ${show(rows.epistemic[i], 3)}, aleatoric ${show(rows.aleatoric[i], 3)}`)];
    const right = rows.predicted[i] === rows.observed[i];
    return [head, line(`observed ${fit.classes[rows.observed[i]]}, ${right ? "predicted right" : `predicted ${fit.classes[rows.predicted[i]]}`}`),
      classBars(fit, i), line(`epistemic ${show(rows.epistemic[i], 3)}, aleatoric ${show(rows.aleatoric[i], 3)} nats`)];
  };

  // The charts of one method

  const luckOf = (share, rows) => 1.96 * Math.sqrt(share * (1 - share) / rows);
  const places = (values) => values.map((_, i) => i);

  const where = (host, fit, group) => {
    const w = fit.where, { rows } = fit;
    if (w.kind === "band") {
      const [low, high] = range([...w.low, ...w.high, ...w.heights]);
      chart(host, {
        title: w.is_whole ? `Prediction of ${clip(target, 24)}` : "Prediction along the main direction",
        read: w.is_whole ? "Nine in ten dots should lie in the pale band; the dark band, doubt about the mean, should widen where there are no data."
          : "A line through the middle of the data, along their first principal component; dots are held-out rows with what their other columns explain taken off. Nine in ten should lie in the band.",
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
        askable(c, places(w.points).map((i) => ({
          x: c.sx(w.points[i]), y: c.sy(w.heights[i]), row: i, node: c.dot(w.points[i], w.heights[i], "k1"), tell: tellRow(fit, i),
        })), group, "row");
      });
    } else if (w.kind === "regions") {
      chart(host, {
        title: "Which class where",
        read: "Colours are the most probable class, paler where the method is less sure; ringed dots were put in the wrong class.",
        x: { label: w.labels[0], range: [w.low[0], w.high[0]] }, y: { label: w.labels[1], range: [w.low[1], w.high[1]] },
        legend: [...fit.classes.slice(0, 8).map((name, i) => ["dot", kind(i), clip(name, 24)]), ["ring", "", "wrong"]],
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
        askable(c, places(w.points[0]).map((i) => {
          const a = w.points[0][i], b = w.points[1][i], node = c.dot(a, b, kind(rows.observed[i]), 3.6);
          if (rows.predicted[i] !== rows.observed[i]) c.mark("circle", { class: "ring", cx: c.sx(a), cy: c.sy(b), r: 5.6 });
          return { x: c.sx(a), y: c.sy(b), row: i, node, tell: tellRow(fit, i) };
        }), group, "row");
      });
    } else {
      chart(host, {
        title: w.is_whole ? "Class probabilities" : "Probabilities along the main direction",
        read: `Curves lie near 0 or 1 where the method is sure. Dots are held-out rows at the probability given to their true class${w.is_whole ? "" : " (by all columns, so they need not lie on a curve)"}: the higher the better.`,
        x: { label: w.label, range: [w.at[0], w.at[w.at.length - 1]] },
        y: { label: "probability", range: [-0.03, 1.03], isShare: true },
        legend: w.classes.map((index) => ["line", kind(index), clip(fit.classes[index], 24)]),
      }, (c) => {
        w.classes.forEach((index, k) => c.line(w.at, w.probs[k], `${kind(index)}${index > 7 ? " dashed" : ""}`));
        askable(c, places(w.points).map((i) => ({
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
        y: { label: "observations inside", range: [0, 1], isShare: true },
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
        title: "Where observations fall (PIT)",
        read: "The bars should be level: a hump in the middle means intervals too wide, high ends too narrow, a slope that predictions lie to one side.",
        x: { label: "share of the prediction below the observation", range: [0, 1], isShare: true },
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
      read: "The dots should follow the diagonal: below it the method is surer than it is right. Large dots stand for many rows; bars are 95 % by chance.",
      x: { label: "probability of the predicted class", range: [0, 1], isShare: true },
      y: { label: "share that was right", range: [-0.03, 1.03], isShare: true },
      legend: [["dot", "k0", "this method"], ["guide", "", "calibrated"]],
    }, (c) => {
      c.mark("path", { class: "guide", d: path([0, 1], [0, 1], c.sx, c.sy) });
      for (const i of used) {
        const p = k.confidence[i], away = luckOf(p, k.rows[i]);
        c.mark("path", { class: "axis", d: path([p, p], [Math.max(0, p - away), Math.min(1, p + away)], c.sx, c.sy) });
      }
      c.line(used.map((i) => k.confidence[i]), used.map((i) => k.accuracy[i]), "k0 thin");
      for (const i of used) c.dot(k.confidence[i], k.accuracy[i], "k0", 3 + 5 * Math.sqrt(k.rows[i] / most))
        .append(make("title", {}, `${k.rows[i]} rows: said ${percent(k.confidence[i])}, right ${percent(k.accuracy[i])}`));
    });
    chart(host, {
      title: "Errors among the surest rows",
      read: "Answering only the rows it is surest of should make fewer errors: the curve should rise from the left.",
      x: { label: "share of rows answered, surest first", range: [0, 1], isShare: true },
      y: { label: "wrong among them", range: [0, Math.max(0.05, 1.1 * Math.max(...fit.selective.risk))], isShare: true },
      legend: [["line", "k0", "this method"]],
    }, (c) => c.line(fit.selective.kept, fit.selective.risk, "k0"));
  };

  const residuals = (host, fit, group) => {
    const { rows } = fit;
    const order = places(rows.mean).sort((a, b) => rows.high[a] - rows.low[a] - rows.high[b] + rows.low[b]);
    const low = rows.low.map((v, i) => v - rows.mean[i]), high = rows.high.map((v, i) => v - rows.mean[i]);
    const residual = rows.observed.map((v, i) => v - rows.mean[i]);
    chart(host, {
      title: "Intervals against errors",
      read: "Each row's 90 % interval and its error, from sure to unsure: one in ten should be outside, and errors should grow with the intervals.",
      x: { label: "held-out rows, from sure to unsure", range: [-1, order.length], names: [] },
      y: { label: "observed − mean", range: range([...low, ...high, ...residual]) },
      legend: [["area", "area k0", "90 % interval"], ["dot", "k0", "inside"], ["cross", "k1", "outside"]],
    }, (c) => {
      c.mark("path", { class: "guide", d: path([-1, order.length], [0, 0], c.sx, c.sy) });
      order.forEach((i, at) => c.mark("path", { class: "span k0", d: path([at, at], [low[i], high[i]], c.sx, c.sy) }));
      askable(c, order.map((i, at) => {
        const inside = residual[i] >= low[i] && residual[i] <= high[i];
        return {
          x: c.sx(at), y: c.sy(residual[i]), row: i, tell: tellRow(fit, i),
          node: inside ? c.dot(at, residual[i], "k0", 2.6) : c.cross(at, residual[i], "k1"),
        };
      }), group, "row");
    });
  };

  const doubts = (host, fit, group) => {
    const { rows } = fit;
    const order = places(rows.epistemic).sort((a, b) => rows.epistemic[a] - rows.epistemic[b]);
    const unit = isRegression ? `standard deviation of ${clip(target, 14)}` : "nats";
    chart(host, {
      title: "Two kinds of doubt",
      read: isRegression ? "Epistemic doubt shrinks with more data; aleatoric doubt is noise that stays. Rows in order of the first."
        : "Epistemic doubt shrinks with more data; aleatoric doubt is overlap of the classes that stays. Ringed rows were put in the wrong class.",
      x: { label: "held-out rows, by epistemic doubt", range: [-1, order.length], names: [] },
      y: { label: unit, range: [0, range([...rows.epistemic, ...rows.aleatoric], 0.06)[1]] },
      legend: [["dot", "k0", "epistemic"], ["dot", "k3", "aleatoric"], ...(isRegression ? [] : [["ring", "", "wrong"]])],
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
      askable(c, points, group, "row");
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
      title: isChains ? "Course of the chains" : `Course of the ${t.label === "elbo" ? "lower bound" : t.label}`,
      read: isChains ? "Chains that agree look like one band of noise, without drift and without steps."
        : "It should rise and level off; still rising at the end means that more steps would help. First steps may lie below the picture.",
      x: { label: isChains ? "draw" : "step", range: [t.steps[0], t.steps[t.steps.length - 1]] },
      y: { label: t.label === "elbo" ? "lower bound (nats)" : t.label, range: [low, high] },
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
      x: { label: "quantities, from agreed to not", range: [0, 1], isShare: true },
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
    const told = fit.widths || [];
    if (!told.length) return;
    const from = told.length - 1, all = told.flatMap((w) => [...w.quantiles, w.prior]).filter((v) => v > 0);
    const most = Math.max(...all), least = Math.max(Math.min(...all), 1e-4 * most);
    chart(host, {
      title: "Spread of the weights by layer",
      read: "Standard deviations under the posterior: boxes hold the middle half, lines nine in ten. A layer as wide as its prior has learned little.",
      height: Math.max(HEIGHT, 46 + 26 * told.length), left: 112,
      x: { label: "standard deviation of a weight", range: [0.8 * least, 1.25 * most], isLog: true },
      y: { range: [-0.6, from + 0.6], names: told.map((w) => clip(w.name, 17)).reverse() },
      legend: [["area", "area k0", "weights of the layer"], ["diamond", "k1", "prior"]],
    }, (c) => told.forEach((w, i) => {
      const [a, b, m, d, e] = w.quantiles.map((v) => c.sx(Math.max(v, least))), y = c.sy(from - i);
      c.mark("path", { class: "line k0 thin", d: `M${a} ${y}H${e}` });
      c.mark("rect", { class: "bar k0", x: b, width: Math.max(2, d - b), y: y - 7, height: 14 },
        make("title", {}, `${w.name}: ${w.weights} weights, middle ${show(w.quantiles[2], 3)}`));
      c.mark("path", { class: "axis", d: `M${m} ${y - 7}V${y + 7}` });
      if (w.prior > 0) c.mark("path", { class: "cross k1", d: `M${c.sx(w.prior)} ${y - 6}l5 6l-5 6l-5 -6Z` });
    }));
  };

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
      title: "Which methods are worth their cost",
      read: "Up is better, left is cheaper; on the line are the methods that no other beats in both. Methods far below are drawn at the lower edge.",
      x: { label: "seconds to fit (logarithmic)", range: [0.7 * Math.min(...seconds), 1.6 * Math.max(...seconds)], isLog: true },
      y: { label: "log-likelihood per row", range: [low, top] },
      legend: [["dot", "k1", "recommended"], ["dot", "k0", "on the front"], ["dot", "k7", "others"], ...(floor > Math.min(...quality) ? [["triangle", "k7", "below the picture"]] : [])],
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
            ...(row.pareto ? [line("on the front: none is both better and cheaper")] : [])],
        };
      });
      askable(c, points, null, "method");
    });
  };
  const cost = (host) => {
    const timed = fits.filter((fit) => fit.wall_time > 0).sort((a, b) => a.wall_time - b.wall_time);
    const isOne = timed.length === 1;
    if (timed.length) chart(host, {
      title: isOne ? "What the fit cost" : "What a fit cost",
      read: "Seconds of one fit: compiling is paid once for tables of about the same size, running every time.",
      height: isOne ? 90 : Math.max(HEIGHT, 46 + 17 * timed.length), left: 124,
      x: { label: "seconds", range: [0, 1.04 * timed[timed.length - 1].wall_time] },
      y: { range: [timed.length - 0.4, -0.6], names: timed.map((fit) => clip(fit.method, 19)) },
      legend: [["area", "bar k3", "compiling"], ["area", "bar k0", "running"]],
    }, (c) => timed.forEach((fit, i) => {
      const compiling = Math.min(fit.compile_time || 0, fit.wall_time), tall = Math.min(16, 0.6 * (c.sy(1) - c.sy(0))), y = c.sy(i) - tall / 2;
      const said = `${fit.method}: ${show(fit.wall_time, 3)} s, of which ${show(compiling, 3)} s compiling`;
      c.mark("rect", { class: "bar k3", x: c.sx(0), width: c.sx(compiling) - c.sx(0), y, height: tall }, make("title", {}, said));
      c.mark("rect", { class: "bar k0", x: c.sx(compiling), width: c.sx(fit.wall_time) - c.sx(compiling), y, height: tall }, make("title", {}, said));
    }));
  };

  // Choosing a method; a panel is drawn when it is first looked at, or printed

  const panels = new Map();
  const fill = (fit) => {
    const panel = panels.get(fit.method);
    if (panel.childElementCount) return panel;
    panel.append(make("h3", {}, fit.method));
    if (fit.error) {
      panel.append(make("p", { class: "story warn" }, `Its charts could not be made. ${fit.error}`));
      return panel;
    }
    panel.append(make("p", { class: "story" }, `${fit.family} over ${fit.weights.toLocaleString("en")} weights. ${fit.stopped} ${show(fit.wall_time, 3)} s, of which ${show(fit.compile_time, 3)} s compiling.`));
    const { chosen = {} } = contents.table.find((row) => row.method === fit.method) || {};
    if (Object.keys(chosen).length) panel.append(make("p", { class: "story" },
      `The budget left room for ${Object.entries(chosen).map(([name, v]) => `${name} ${v}`).join(", ")}.`));
    for (const note of fit.notes) panel.append(make("p", { class: "story" }, note));
    if (fit.chains && fit.chains.warning) panel.append(make("p", { class: "story warn" }, fit.chains.warning));
    if (fit.outputs > 1) panel.append(make("p", { class: "story" }, `y has ${fit.outputs} columns; the charts are of the first.`));
    const host = make("div", { class: "charts" }), group = {};
    panel.append(host);
    where(host, fit, group);
    calibration(host, fit);
    if (isRegression) residuals(host, fit, group);
    doubts(host, fit, group);
    run(host, fit);
    chains(host, fit);
    widths(host, fit);
    if (contents.kind === "fit") cost(host);
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
})();
