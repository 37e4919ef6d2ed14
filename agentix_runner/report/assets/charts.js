// Small charts as SVG, drawn for the width that there is.

// An element that draws itself again when its width changes.
function chart(label, draw) {
  const box = el("div", { class: "chart" });
  let width = 0;
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now === width || now < 40) return;
    width = now;
    box.replaceChildren(...[draw(width)].flat().map((node) => {
      if (node.tagName === "svg") { node.setAttribute("role", "img"); node.setAttribute("aria-label", label); }
      return node;
    }));
  }).observe(box);
  return box;
}
const picture = (width, height, ...children) =>
  svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, ...children);
const label = (x, y, text, anchor = "start", kind = "") => svg("text", { x, y, "text-anchor": anchor, class: kind }, text);
const line = (x1, y1, x2, y2, kind) => svg("line", { x1, y1, x2, y2, class: kind });
const rect = (x, y, width, height) => `M${x.toFixed(2)} ${y.toFixed(2)}h${width.toFixed(2)}v${height.toFixed(2)}h${(-width).toFixed(2)}z`;

function steps(max, count) {
  const raw = max / count, power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((f) => f * power).find((step) => step >= raw * 0.999);
}
function ticks(max, count, whole = false) {
  if (!(max > 0)) return [0];
  const step = Math.max(steps(max, count), whole ? 1 : 0), found = [];
  for (let i = 0; i * step <= max * 1.0001; i++) found.push(i * step);
  return found;
}
// The unit in which durations up to `max` seconds read best: [seconds in it, its name].
const timeUnit = (max) => max < 1 ? [0.001, "ms"] : max < 150 ? [1, "s"] : max < 9000 ? [60, "min"] : max < 259200 ? [3600, "h"] : [86400, "d"];
const tickText = (value) => String(Number(value.toPrecision(6)));

// A share of 100 % in pieces: [kind, words, count].
function shares(parts, total) {
  return el("div", { class: "shares", "aria-hidden": "true" }, parts.filter(([, , count]) => count).map(([kind, , count]) => {
    const piece = el("span", { class: `f-${kind}` });
    piece.style.flexGrow = count / total;
    return piece;
  }));
}

// A rate with its interval on a line from 0 to 100 %.
function rateLine(values, rowHeight = 22) {
  const words = values.map(([name, value, low, high]) => `${name} ${percent(value)}, 95 % interval ${interval(low, high)}`);
  return chart(words.join("; "), (width) => {
    const longest = Math.max(...values.map(([name]) => name.length)), left = longest ? Math.min(longest * 7 + 12, width * 0.35) : 8, right = 14;
    const x = (value) => left + value * (width - left - right), bottom = values.length * rowHeight + 4;
    const out = picture(width, bottom + 34);
    for (const value of [0, 0.25, 0.5, 0.75, 1]) {
      out.append(line(x(value), 0, x(value), bottom, "grid"), label(x(value), bottom + 14, `${value * 100}`, "middle"));
    }
    out.append(label(x(0.5), bottom + 30, "% of instances", "middle", "axis"));
    values.forEach(([name, value, low, high, kind], i) => {
      const y = i * rowHeight + rowHeight / 2 + 2;
      if (longest) out.append(label(left - 8, y + 4, clip(name, (left - 8) / 7), "end", "name"));
      out.append(line(x(low), y, x(high), y, `whisker ${kind || ""}`), line(x(low), y - 4, x(low), y + 4, `whisker ${kind || ""}`),
        line(x(high), y - 4, x(high), y + 4, `whisker ${kind || ""}`),
        svg("circle", { cx: x(value), cy: y, r: 5, class: `dot ${kind || ""}` }));
    });
    return out;
  });
}
const clip = (text, length) => text.length > length ? text.slice(0, Math.max(1, Math.floor(length) - 1)) + "…" : text;

// pass@k by k.
function passChart(values) {
  const words = values.map(([k, value]) => `pass@${k} ${percent(value)}`).join(", ");
  return chart(words, (width) => {
    const left = 44, right = 12, top = 8, height = 150, bottom = top + height;
    const x = (i) => left + (i + 0.5) * (width - left - right) / values.length, y = (v) => bottom - v * height;
    const out = picture(width, bottom + 40);
    for (const value of [0, 0.25, 0.5, 0.75, 1]) {
      out.append(line(left, y(value), width - right, y(value), "grid"), label(left - 6, y(value) + 4, `${value * 100}`, "end"));
    }
    out.append(svg("polyline", { class: "trend", points: values.map(([, v], i) => `${x(i)},${y(v)}`).join(" ") }));
    const every = Math.ceil(values.length / ((width - left) / 28));
    values.forEach(([k, value, low, high, instances], i) => {
      out.append(line(x(i), y(low), x(i), y(high), "whisker"));
      const dot = svg("circle", { cx: x(i), cy: y(value), r: 5, class: "dot" });
      const hit = svg("rect", { x: x(i) - 12, y: top, width: 24, height, class: "hit" });
      hit.addEventListener("pointermove", (event) => tip(event, `pass@${k}`, [["estimate", percent(value)],
        ["95 % interval", interval(low, high)], ["instances", number(instances)]]));
      hit.addEventListener("pointerleave", noTip);
      out.append(dot, hit);
      if (i % every === 0) out.append(label(x(i), bottom + 16, String(k), "middle"));
    });
    out.append(label((left + width - right) / 2, bottom + 34, "k (attempts)", "middle", "axis"), yTitle(top + height / 2, "pass@k (%)"));
    return out;
  });
}
const yTitle = (y, text) => svg("text", { x: 0, y: 0, class: "axis", "text-anchor": "middle", transform: `translate(11 ${y}) rotate(-90)` }, text);

// How long things took: a histogram of [seconds, status], stacked by status.
function histogram(values, what) {
  const sorted = values.map(([s]) => s).sort((a, b) => a - b);
  const median = quantile(sorted, 0.5), p95 = quantile(sorted, 0.95), max = sorted[sorted.length - 1];
  return chart(`${what}: median ${duration(median)}, 95 % within ${duration(p95)}, longest ${duration(max)}`, (width) => {
    const left = 46, right = 14, top = 26, height = 150, bottom = top + height, room = width - left - right;
    const bins = Math.max(8, Math.min(40, Math.floor(room / 16), Math.ceil(2 * Math.sqrt(sorted.length)) + 4));
    const positive = sorted.find((s) => s > 0) || 0.001;
    const wide = max > 30 * Math.max(median, 0.001) || quantile(sorted, 0.95) > 30 * Math.max(quantile(sorted, 0.05), 0.001);
    const low = wide ? Math.log10(Math.max(positive, max / 1e6, 0.001)) : 0, high = wide ? Math.log10(max) + 1e-9 : max * 1.0000001;
    const place = (s) => Math.min(Math.max(((wide ? Math.log10(Math.max(s, 1e-9)) : s) - low) / (high - low || 1), 0), 0.999999);
    const x = (s) => left + place(s) * room;
    const counts = Array.from({ length: bins }, () => ({}));
    for (const [s, status] of values) {
      const bin = counts[Math.floor(place(s) * bins)];
      bin[status] = (bin[status] || 0) + 1;
    }
    const tallest = Math.max(...counts.map((bin) => sum(Object.values(bin))));
    const y = (count) => bottom - count / tallest * height, out = picture(width, bottom + 40);
    for (const count of ticks(tallest, 4, true)) {
      out.append(line(left, y(count), width - right, y(count), "grid"), label(left - 6, y(count) + 4, short(count), "end"));
    }
    const paths = {};
    counts.forEach((bin, i) => {
      let count = 0;
      for (const [status] of STATUSES) {
        if (!bin[status]) continue;
        paths[status] = (paths[status] || "") + rect(left + i * room / bins + 0.75, y(count + bin[status]), room / bins - 1.5, y(count) - y(count + bin[status]));
        count += bin[status];
      }
    });
    for (const [status, path] of Object.entries(paths)) out.append(svg("path", { d: path, class: `f-${status}` }));
    const [unit, unitName] = timeUnit(max);
    if (wide) {
      let last = -50;
      for (const [s, text] of [[0.001, "1 ms"], [0.01, "10 ms"], [0.1, "0.1 s"], [1, "1 s"], [10, "10 s"], [60, "1 min"], [600, "10 min"], [3600, "1 h"], [36000, "10 h"]]) {
        if (Math.log10(s) < low || Math.log10(s) > high || x(s) - last < 50) continue;
        last = x(s);
        out.append(line(x(s), bottom, x(s), bottom + 4, "tick"), label(x(s), bottom + 17, text, "middle"));
      }
    } else {
      for (const value of ticks(max / unit, Math.max(2, room / 70))) {
        out.append(line(x(value * unit), bottom, x(value * unit), bottom + 4, "tick"), label(x(value * unit), bottom + 17, tickText(value), "middle"));
      }
    }
    out.append(label(left + room / 2, bottom + 34, wide ? `${what} (logarithmic)` : `${what} (${unitName})`, "middle", "axis"),
      yTitle(top + height / 2, "rollouts"), line(left, bottom, width - right, bottom, "base"));
    // The marks' words keep clear of each other and of the edges.
    const marks = [[median, `median ${duration(median)}`]], apart = 6.6 * (marks[0][1].length + 16);
    if (x(p95) - x(median) > apart) marks.push([p95, `95 % within ${duration(p95)}`]);
    for (const [s, text] of marks) {
      const half = text.length * 3.3;
      out.append(line(x(s), top - 8, x(s), bottom, "mark"),
        label(Math.max(left + half, Math.min(x(s), width - right - half)), top - 12, text, "middle", "strong"));
    }
    return out;
  });
}
