// The run over time: how many rollouts were in which phase, and every rollout on the lane of a free place.

// Stretches in which nothing ran (between a run and its resumption) are cut out: [start, end, shift] of each stretch.
function stretches(rollouts) {
  const spans = rollouts.map((r) => [r.started, r.started + r.duration]).sort((a, b) => a[0] - b[0]);
  const busy = [];
  for (const [start, end] of spans) {
    const last = busy[busy.length - 1];
    if (last && start <= last[1]) last[1] = Math.max(last[1], end);
    else busy.push([start, end]);
  }
  const total = sum(busy.map(([start, end]) => end - start)), found = [];
  for (const [start, end] of busy) {
    const last = found[found.length - 1];
    if (last && start - last[1] <= Math.max(total * 0.15, 1)) last[1] = end;
    else found.push([start, end]);
  }
  let length = 0;
  return found.map(([start, end]) => {
    const stretch = { start, end, at: length };
    length += end - start;
    return stretch;
  });
}

// Each rollout's lane: the first that is free when it starts.
function lanesOf(rollouts) {
  const free = [], lanes = new Map();
  for (const r of [...rollouts].sort((a, b) => a.started - b.started)) {
    let lane = free.findIndex((until) => until <= r.started + 0.005);
    if (lane < 0) lane = free.push(0) - 1;
    free[lane] = r.started + r.duration;
    lanes.set(r, lane);
  }
  return [lanes, free.length];
}

function timeline(all, open) {
  const rollouts = all.filter((r) => r.started !== undefined && r.duration > 0);
  if (!rollouts.length) return el("p", { class: "empty" }, "No rollout has times.");
  const parts = stretches(rollouts), last = parts[parts.length - 1], total = Math.max(last.at + last.end - last.start, 0.001);
  const stretchOf = (r) => parts.findLast((part) => part.start <= r.started + 1e-6) || parts[0];
  const [lanes, count] = lanesOf(rollouts);
  const words = `${plural(rollouts.length, "rollout")} in ${duration(total)}, up to ${count} at once`;
  const drawn = chart(words, (width) => {
    const left = 46, right = 14, gap = parts.length > 1 ? 22 : 0, room = width - left - right - gap * (parts.length - 1);
    const index = new Map(parts.map((part, i) => [part, i]));
    const place = (part, seconds) => left + index.get(part) * gap + (part.at + seconds) / total * room;
    const top = 8, area = 110, laneTop = top + area + 16, lane = Math.max(Math.min(18, Math.max(3, 220 / count)), 300 / count > 3 ? 3 : 300 / count);
    const bottom = laneTop + lane * count, out = picture(width, bottom + 40);

    // How many are in which phase, averaged over each bin of about two pixels.
    const bins = Math.max(20, Math.floor(room / 2)), sums = PHASES.map(() => new Float64Array(bins));
    const paths = PHASES.map(() => "");
    for (const r of rollouts) {
      const part = stretchOf(r), offset = r.started - part.start, y = laneTop + lanes.get(r) * lane;
      for (const [phase, start, end] of r.phases || []) {
        const x = place(part, offset + start), w = Math.max(place(part, offset + end) - x, 0.15);
        paths[phase] += rect(x, y + (lane > 4 ? 1 : 0), w, lane > 4 ? lane - 2 : lane);
        let from = (part.at + offset + start) / total * bins;
        const to = Math.min((part.at + offset + end) / total * bins, bins);
        while (from < to) {
          const bin = Math.floor(from + 1e-9), until = Math.min(bin + 1, to);
          if (bin >= bins) break;
          sums[phase][bin] += until - from;
          from = until;
        }
      }
    }
    const stacked = new Float64Array(bins), layers = sums.map((layer) => layer.map((value, i) => [stacked[i], stacked[i] += value][0]));
    const tops = layers.map((base, phase) => base.map((value, i) => value + sums[phase][i]));
    const tallest = Math.max(1, ...stacked), y = (value) => top + area - value / tallest * area;
    for (const value of ticks(tallest, 3, true)) {
      out.append(line(left, y(value), width - right, y(value), "grid"), label(left - 6, y(value) + 4, short(value), "end"));
    }
    const binX = (i) => {
      const at = i / bins * total, part = parts.findLast((p) => p.at <= at + 1e-9) || parts[0];
      return place(part, at - part.at);
    };
    PHASES.forEach((name, phase) => {
      if (!sums[phase].some((value) => value > 0)) return;
      let over = "", under = "";
      for (let i = 0; i < bins; i++) {
        const x1 = binX(i).toFixed(1), x2 = Math.min(binX(i) + room / bins, width - right).toFixed(1);
        over += `${i ? "L" : "M"}${x1} ${y(tops[phase][i]).toFixed(1)}L${x2} ${y(tops[phase][i]).toFixed(1)}`;
        under = `L${x2} ${y(layers[phase][i]).toFixed(1)}L${x1} ${y(layers[phase][i]).toFixed(1)}` + under;
      }
      out.append(svg("path", { d: over + under + "z", class: `f-${name}` }));
    });
    PHASES.forEach((name, phase) => { if (paths[phase]) out.append(svg("path", { d: paths[phase], class: `f-${name}` })); });

    const [unit, unitName] = timeUnit(total);
    for (const value of ticks(total / unit, Math.max(2, room / 80))) {
      const at = Math.min(value * unit, total), part = parts.findLast((p) => p.at <= at + 1e-9) || parts[0], x = place(part, at - part.at);
      out.append(line(x, bottom, x, bottom + 4, "tick"), label(x, bottom + 17, tickText(value), "middle"));
    }
    for (const part of parts.slice(1)) {
      const before = parts[index.get(part) - 1], x = place(part, 0) - gap / 2;
      const mark = svg("g", {}, svg("rect", { x: x - gap / 2 + 1, y: top, width: gap - 2, height: bottom - top, class: "pause" }),
        svg("text", { class: "axis", "text-anchor": "middle", transform: `translate(${x + 4} ${top + area / 2}) rotate(-90)` }, `pause ${duration(part.start - before.end)}`));
      out.append(mark);
    }
    out.append(label(left + (width - left - right) / 2, bottom + 34, parts.length > 1 ? `time since the start, without pauses (${unitName})` : `time since the start (${unitName})`, "middle", "axis"),
      yTitle(top + area / 2, "rollouts running"), line(left, bottom, width - right, bottom, "base"),
      line(left, top + area, width - right, top + area, "base"));
    if (lane * count > 40) out.append(yTitle(laneTop + lane * count / 2, lane * count > 120 ? "lanes (one each)" : "lanes"));

    const find = (event) => {
      const box = out.getBoundingClientRect(), px = event.clientX - box.left, row = Math.floor((event.clientY - box.top - laneTop) / lane);
      let best = null, nearest = 4;
      for (const r of rollouts) {
        if (lanes.get(r) !== row) continue;
        const part = stretchOf(r), from = place(part, r.started - part.start), to = place(part, r.started - part.start + r.duration);
        const away = px < from ? from - px : px > to ? px - to : 0;
        if (away < nearest) { best = r; nearest = away; }
      }
      return best;
    };
    out.addEventListener("pointermove", (event) => {
      const r = find(event);
      out.classList.toggle("pointing", Boolean(r));
      if (!r) { noTip(); return; }
      tip(event, clip(oneLine(r.id), 60), [["status", STATUS_WORDS[r.status]], ["total", duration(r.duration)],
        ...phaseSums(r).map(([name, s]) => [name, duration(s)])]);
    });
    out.addEventListener("pointerleave", noTip);
    out.addEventListener("click", (event) => { const r = find(event); if (r) { noTip(); open(r); } });
    return out;
  });
  return [drawn, el("ul", { class: "legend" }, PHASES.map((name) => el("li", {}, el("span", { class: `key f-${name}` }), name)))];
}

// [phase, seconds] of a rollout, in order; the two sessions and teardowns together.
function phaseSums(r) {
  const sums = PHASES.map(() => 0);
  for (const [phase, start, end] of r.phases || []) sums[phase] += end - start;
  return sums.map((s, phase) => [PHASES[phase], s]).filter(([, s]) => s > 0);
}

// A rollout's phases as a bar; `longest` seconds are the full width.
function phaseBar(r, longest, width, height) {
  const scale = width / (longest || 1), paths = {};
  for (const [phase, start, end] of r.phases || []) {
    paths[phase] = (paths[phase] || "") + rect(start * scale, 0, Math.max((end - start) * scale, 0.5), height);
  }
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "phasebar", "aria-hidden": "true" },
    Object.entries(paths).map(([phase, d]) => svg("path", { d, class: `f-${PHASES[phase]}` })));
}
