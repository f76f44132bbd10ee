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
    let drawn = "", pen = "M";
    xs.forEach((v, i) => {
      if (v === null || ys[i] === null) { pen = "M"; return; }
      drawn += `${pen}${sx(v).toFixed(1)} ${sy(ys[i]).toFixed(1)}`;
      pen = "L";
    });
    return drawn || "M0 0";
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

  // Points with a tooltip: `points` are {x, y (pixels), node, tell()}; `group` links the charts
  // of a method, where the same row is marked in all of them.

  const hide = () => {
    tip.hidden = true;
    for (const node of document.querySelectorAll("svg .on")) node.classList.remove("on");
  };
  const withTooltips = (chartApi, points, group, what) => {
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
    const probs = fit.rows.probs[i];
    const svg = make("svg", { viewBox: `0 0 200 ${probs.length * 16 + 2}`, "aria-hidden": "true" });
    probs.forEach(([label, share], k) => {
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
      line(`observed ${show(rows.observed[i])} (line)`), line(`mean ${show(rows.mean[i])}, std ${show(rows.std[i], 3)}`),
      line(`90 %: ${show(rows.low[i])} to ${show(rows.high[i])} (shaded)`),
      line(`epistemic ${show(rows.epistemic[i], 3)}, aleatoric ${show(rows.aleatoric[i], 3)}`)];
    const right = rows.predicted[i] === rows.observed[i];
    return [head, line(`observed ${fit.classes[rows.observed[i]]}, ${right ? "predicted correctly" : `predicted ${fit.classes[rows.predicted[i]]}`}`),
      classBars(fit, i), line(`epistemic ${show(rows.epistemic[i], 3)}, aleatoric ${show(rows.aleatoric[i], 3)} nats`)];
  };
