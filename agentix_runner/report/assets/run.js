// The view of one run: totals, timeline, durations, errors, usage, and the table of its rollouts.

function runView(run, which) {
  const rollouts = run.rollouts, summary = run.summary;
  const open = (r) => openDetails(which, r, listing ? listing.sorted() : rollouts);
  let listing = null;
  const chosen = { status: new Set((state.status || "").split(",").filter(Boolean)), group: state.group || "" };
  const search = el("input", { type: "search", placeholder: "Filter by id or error", "aria-label": "Filter by id or error", value: state.q || "" });

  const refresh = (toStart) => {
    const words = search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    remember({ status: [...chosen.status].join(","), group: chosen.group, q: search.value });
    const shown = rollouts.filter((r) => (!chosen.status.size || chosen.status.has(r.status)) &&
      (!chosen.group || groupOf(r) === chosen.group) && words.every((word) => (r.text ||= `${r.id}\n${r.error || ""}`.toLowerCase()).includes(word)));
    listing.show(shown, toStart);
    groupChip.replaceChildren(...(chosen.group ? [el("button", { type: "button", class: "chip", "aria-pressed": "true", title: "Show all again",
      onclick: () => { chosen.group = ""; refresh(true); } }, clip(visible(chosen.group.replace("\n", " in ")), 60), " ✕")] : []));
  };
  const groupChip = el("span", { class: "chips" });
  const showOnly = (group) => {
    chosen.group = group;
    refresh(true);
    byId("rollouts").scrollIntoView({ block: "start" });
    search.focus({ preventScroll: true });
  };

  const statusChips = chips("Status", STATUSES.filter(([key]) => summary[key]).map(([key, words]) => [key, words, summary[key], `s-${key}`]),
    chosen.status, () => refresh(true));
  listing = sortedTable({
    caption: "Rollouts", columns: rolloutColumns(rollouts, open), sort: state.sort || "id", page: Number(state.page) || 0, open,
    changed: ({ sort, page }) => remember({ sort: sort === "id" ? "" : sort, page: page || "" }),
  });
  let typing = 0;
  search.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => refresh(true), 80); });

  const groups = errorGroups(rollouts);
  const nodes = [
    totals(run),
    panel("Timeline", null, timeline(rollouts, open)),
    el("div", { class: "pair" }, durations(rollouts), phaseTable(rollouts)),
    groups.length ? errors(groups, showOnly) : null,
    usage(run),
    el("section", { class: "panel", id: "rollouts" }, el("h2", {}, "Rollouts"),
      el("div", { class: "tools" }, search, statusChips, groupChip), listing.node),
  ];
  refresh(false);
  if (state.open !== undefined && rollouts[Number(state.open)]) queueMicrotask(() => open(rollouts[Number(state.open)]));
  return nodes;
}

const groupOf = (r) => r.error ? `${r.type || ""}\n${r.phase || ""}` : null;

function totals(run) {
  const { summary, rate } = run, total = summary.rollouts;
  const left = (run.planned || 0) - total;
  const parts = STATUSES.map(([key, words]) => [key, words, summary[key]]).filter(([, , count]) => count);
  const passes = run.pass_at_k;
  const cards = [];
  if (rate) {
    cards.push(el("section", { class: "panel rate" }, el("h2", {}, "Resolved rate"),
      el("p", { class: "big" }, percent(rate[0])),
      el("p", { class: "note" }, `95 % interval ${interval(rate[1], rate[2])}`),
      rateLine([["", ...rate]]),
      el("p", { class: "fine" }, passes.length
        ? "The mean over instances of the share of attempts that resolved; what failed counts as not resolved. Wilson's score interval with the effective number of trials, between the number of instances and that of attempts."
        : "Over all instances; what failed counts as not resolved. Wilson's score interval.")));
  }
  cards.push(el("section", { class: "panel" }, el("h2", {}, "Rollouts"),
    el("p", { class: "big" }, number(total), summary.attempts > 1 ? el("span", { class: "note" }, ` of ${plural(summary.instances, "instance")}, up to ${summary.attempts} attempts`) : null),
    left > 0 ? el("p", { class: "note" }, `of ${number(run.planned)} planned`) : null,
    total ? shares(parts, total) : null,
    el("ul", { class: "counts" }, parts.map(([key, words, count]) => el("li", {}, el("span", { class: `key f-${key}` }), words,
      el("b", {}, number(count)), el("span", { class: "note" }, percent(count / total))))),
    summary.mean_reward !== null && summary.resolved + summary.unresolved && Math.abs(summary.mean_reward - summary.resolved / (summary.resolved + summary.unresolved)) > 1e-9
      ? el("p", { class: "note" }, `mean reward ${number(summary.mean_reward)}`) : null));
  if (passes.length) {
    cards.push(el("section", { class: "panel" }, el("h2", {}, "pass@k"), passChart(passes),
      el("p", { class: "fine" }, "The chance that one of k attempts resolves (the unbiased estimator of Chen et al., 2021), over the instances with at least k attempts; 95 % intervals as for the rate.")));
  }
  return el("div", { class: "cards" }, cards);
}

function durations(rollouts) {
  const choices = [["all", "whole rollout"], ...PHASES.map((name) => [name, name])];
  const select = el("select", { "aria-label": "Duration of" }, choices.map(([key, words]) => el("option", { value: key }, words)));
  const place = el("div"), draw = () => {
    const phase = PHASES.indexOf(select.value), values = [];
    for (const r of rollouts) {
      const mine = phase < 0 ? [[0, 0, r.duration]] : (r.phases || []).filter(([p]) => p === phase);
      if (mine.length && r.status !== "not_run") values.push([sum(mine.map(([, start, end]) => end - start)), r.status]);
    }
    place.replaceChildren(values.length ? histogram(values, phase < 0 ? "duration of a rollout" : `duration of ${select.value}`) : el("p", { class: "empty" }, "None."));
  };
  select.addEventListener("change", draw);
  draw();
  const used = STATUSES.filter(([key]) => rollouts.some((r) => r.status === key));
  return el("section", { class: "panel" }, el("div", { class: "tools" }, el("h2", {}, "Durations"), select), place,
    el("ul", { class: "legend" }, used.map(([key, words]) => el("li", {}, el("span", { class: `key f-${key}` }), words))));
}

function phaseTable(rollouts) {
  const found = PHASES.map((name, phase) => {
    const values = rollouts.map((r) => sum((r.phases || []).filter(([p]) => p === phase).map(([, start, end]) => end - start))).filter((s) => s > 0).sort((a, b) => a - b);
    return { name, total: sum(values), median: quantile(values, 0.5), p95: quantile(values, 0.95), max: values[values.length - 1] };
  }).filter((row) => row.max !== undefined);
  const all = sum(found.map((row) => row.total)) || 1;
  return panel("Time by phase", null, shares(found.map((row) => [row.name, row.name, row.total]), all),
    el("div", { class: "scroll" }, el("table", { class: "plain phases" },
      el("thead", {}, el("tr", {}, ["phase", "share", "median", "95 % within", "longest", "sum"].map((name, i) => el("th", { scope: "col", class: i ? "right" : null }, name)))),
      el("tbody", {}, found.map((row) => el("tr", {}, el("td", {}, el("span", { class: `key f-${row.name}` }), row.name), el("td", { class: "right" }, percent(row.total / all, 0)),
        [row.median, row.p95, row.max, row.total].map((s) => el("td", { class: "right" }, duration(s)))))))));
}

function errorGroups(rollouts) {
  const groups = new Map();
  for (const r of rollouts) {
    if (!r.error) continue;
    const key = groupOf(r), group = groups.get(key) || { key, type: r.type || "", phase: r.phase || "", count: 0, example: r };
    group.count++;
    if (collator.compare(r.id, group.example.id) < 0) group.example = r;
    groups.set(key, group);
  }
  return [...groups.values()].sort((a, b) => b.count - a.count || collator.compare(a.key, b.key));
}

function errors(groups, showOnly) {
  const most = groups[0].count, row = (group) => el("tr", {},
    el("td", { class: "right count" }, number(group.count), bar(group.count / most)),
    el("td", {}, el("button", { type: "button", class: "link", onclick: () => showOnly(group.key), title: "Show these rollouts" }, oneLine(group.type) || "error"),
      el("span", { class: "note" }, ` in ${oneLine(group.phase)}`),
      el("p", { class: "example" }, el("code", {}, clip(oneLine(group.example.id), 80)), " ", oneLine(group.example.error))));
  const body = el("tbody", {}, groups.slice(0, 12).map(row)), out = [el("table", { class: "plain errors" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col", class: "right" }, "rollouts"), el("th", { scope: "col" }, "error, with an example"))), body)];
  if (groups.length > 12) {
    const more = el("button", { type: "button", class: "more", onclick: () => { body.append(...groups.slice(12).map(row)); more.remove(); } }, `Show ${groups.length - 12} more`);
    out.push(more);
  }
  return panel("Errors", `${plural(sum(groups.map((g) => g.count)), "rollout")}, ${groups.length} ${groups.length === 1 ? "kind" : "kinds"}`, ...out);
}
function bar(share) {
  const piece = el("span", { class: "bar", "aria-hidden": "true" });
  piece.style.width = `${Math.max(2, share * 100)}%`;
  return piece;
}

function usage(run) {
  const sums = Object.entries(run.summary.usage).filter(([, total]) => total !== null);
  if (!sums.length) return null;
  return panel("Usage", "What the agent noted, over all rollouts.", el("dl", { class: "usage" }, sums.map(([name, total]) => {
    const count = run.rollouts.filter((r) => r.usage && r.usage[name] !== undefined).length;
    return el("div", {}, el("dt", {}, visible(name)), el("dd", {}, number(total)), el("dd", { class: "note" }, `${number(total / (count || 1))} a rollout`));
  })));
}

function rolloutColumns(rollouts, open) {
  const some = (test) => rollouts.some(test), longest = rollouts.reduce((most, r) => Math.max(most, r.duration || 0), 0.001);
  const keys = [...new Set(rollouts.flatMap((r) => Object.keys(r.usage || {})))].sort();
  const pick = (...ends) => ends.map((end) => keys.find((key) => key === end || key.endsWith("." + end))).find(Boolean);
  const used = [pick("total_tokens", "tokens", "output_tokens", "completion_tokens"), pick("cost", "total_cost", "cost_usd", "instance_cost"), pick("steps", "n_steps", "turns", "api_calls", "n_calls")].filter(Boolean);
  return [
    { key: "status", title: "status", narrow: true, value: (r) => STATUS_RANK[r.status], cell: (r) => pill(r.status) },
    { key: "id", title: "instance", narrow: true, kind: "id", value: (r) => r.id, cell: (r) => [
      el("button", { type: "button", class: "link", onclick: () => open(r), title: r.id.length > 60 ? visible(r.id) : null }, clip(oneLine(r.id), 120)),
      r.attempt ? el("span", { class: "note slim" }, ` attempt ${r.attempt}`) : null,
      r.error ? el("span", { class: "error-line" }, oneLine(r.error)) : null] },
    some((r) => r.attempt) && { key: "attempt", title: "attempt", right: true, value: (r) => r.attempt, cell: (r) => String(r.attempt) },
    some((r) => r.reward !== undefined && r.reward !== 0 && r.reward !== 1) && { key: "reward", title: "reward", right: true, value: (r) => r.reward, cell: (r) => number(r.reward) },
    { key: "duration", title: "duration", right: true, narrow: true, kind: "nowrap", value: (r) => r.duration, cell: (r) => duration(r.duration) },
    { key: "agent", title: "agent's time", right: true, kind: "nowrap", value: (r) => sum((r.phases || []).filter(([p]) => p === 2).map(([, start, end]) => end - start)) || null,
      cell: (r) => duration((phaseSums(r).find(([name]) => name === "agent") || [])[1]) },
    { key: "phases", title: "phases", kind: "bars", value: (r) => r.started, cell: (r) => phaseBar(r, longest, 110, 8) },
    some((r) => r.added || r.removed) && { key: "patch", title: "lines", right: true, kind: "nowrap", value: (r) => (r.added || 0) + (r.removed || 0),
      cell: (r) => r.added || r.removed ? [el("span", { class: "added" }, `+${number(r.added || 0)}`), " ", el("span", { class: "removed" }, `−${number(r.removed || 0)}`)] : "" },
    ...used.map((key) => ({ key: `u.${key}`, title: visible(key.split(".").pop().replaceAll("_", " ")), right: true, kind: "nowrap", value: (r) => (r.usage || {})[key], cell: (r) => number((r.usage || {})[key]) })),
  ].filter(Boolean);
}
