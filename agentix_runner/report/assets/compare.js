// Several runs side by side; the first is what the others are held against.

const often = data.runs.some((run) => run.summary.attempts > 1);
const KINDS = [["gained", often ? "resolved more often" : "now resolved"], ["lost", often ? "resolved less often" : "no longer resolved"],
  ["same", "as before"], ["only", "in one only"]];
const letter = (i) => String.fromCharCode(65 + i % 26) + (i >= 26 ? Math.floor(i / 26) : "");

function compareView(show) {
  const runs = data.runs, { instances, against } = data.comparison;
  const rows = new Map();
  runs.forEach((run, i) => run.rollouts.forEach((r) => {
    if (!rows.has(r.id)) rows.set(r.id, runs.map(() => []));
    rows.get(r.id)[i].push(r);
  }));
  const name = (i) => `${letter(i)} · ${visible(runs[i].name)}`;
  const other = Math.max(1, Math.min(Number(state.with) || 1, runs.length - 1));
  const chosen = new Set((state.kind === undefined ? "gained,lost" : state.kind).split(",").filter(Boolean));
  const search = el("input", { type: "search", placeholder: "Filter by id", "aria-label": "Filter by id", value: state.q || "" });
  const counts = against[other - 1];

  const refresh = (toStart) => {
    const words = search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    remember({ kind: [...chosen].join(",") === "gained,lost" ? null : [...chosen].join(",") || "all", q: search.value });
    listing.show(instances.filter(([id, , kinds]) => (!chosen.size || chosen.has("all") || chosen.has(kinds[other - 1])) &&
      words.every((word) => id.toLowerCase().includes(word))), toStart);
  };
  chosen.delete("all");
  const cell = (i) => ([id, tallies]) => {
    if (!tallies[i]) return el("span", { class: "note" }, "–");
    const [attempts, resolved] = tallies[i], mine = rows.get(id)[i];
    const words = attempts > 1 ? `${resolved} of ${attempts}` : STATUS_WORDS[mine[0].status];
    const kind = attempts > 1 ? (resolved === attempts ? "resolved" : resolved ? "some" : "unresolved") : mine[0].status;
    return el("button", { type: "button", class: `pill s-${kind}`, title: "Show the rollout", onclick: () => openDetails(i, mine[0], mine) }, words);
  };
  const share = (i) => ([, tallies]) => tallies[i] ? tallies[i][1] / tallies[i][0] : null;
  const listing = sortedTable({
    caption: "Instances", sort: state.sort || "change", page: Number(state.page) || 0,
    changed: ({ sort, page }) => remember({ sort: sort === "change" ? "" : sort, page: page || "" }),
    columns: [
      { key: "change", title: runs.length > 2 ? `A to ${letter(other)}` : "change", narrow: true, value: ([, , kinds]) => ["lost", "gained", "only", "same"].indexOf(kinds[other - 1]),
        cell: ([, , kinds]) => el("span", { class: `change c-${kinds[other - 1]}` }, KINDS.find(([key]) => key === kinds[other - 1])[1]) },
      { key: "id", title: "instance", narrow: true, kind: "id", value: ([id]) => id, cell: ([id]) => el("span", { class: "mono" }, clip(oneLine(id), 120)) },
      ...runs.map((run, i) => ({ key: `r${i}`, title: letter(i), narrow: true, value: share(i), cell: cell(i) })),
    ],
  });
  let typing = 0;
  search.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => refresh(true), 80); });
  const kindChips = chips("Change", KINDS.filter(([key]) => counts[key]).map(([key, words]) => [key, words, counts[key], `c-${key}`]), chosen, () => refresh(true));
  const pick = runs.length > 2 ? el("label", { class: "pick" }, `${name(0)} against `, el("select", { onchange: (event) => { remember({ with: event.target.value, page: null }); show("compare"); } },
    runs.slice(1).map((run, i) => el("option", { value: i + 1, selected: i + 1 === other }, name(i + 1))))) : null;

  const rated = runs.map((run, i) => run.rate ? [name(i), ...run.rate, i ? "" : "first"] : null).filter(Boolean);
  const nodes = [
    el("div", { class: "pair" },
      rated.length ? panel("Resolved rate", "With 95 % intervals.", rateLine(rated, 30)) : null,
      panel("Changes", `${runs.length > 2 ? "Each run" : name(1)} against ${name(0)}.`,
        el("div", { class: "changes" }, against.map((found, i) => change(found, name(i + 1), runs.length > 2))),
        el("p", { class: "fine" }, "p is that of an exact sign test over the instances that differ; for single attempts it is McNemar's test."))),
    panel("Side by side", null, el("div", { class: "scroll" }, sideBySide(runs, name))),
    el("section", { class: "panel", id: "rollouts" }, el("h2", {}, "Instances"), el("div", { class: "tools" }, search, pick, kindChips), listing.node),
  ];
  refresh(false);
  return nodes;
}

function change(found, after, several) {
  const differ = found.gained + found.lost;
  const chance = !differ ? "Nothing changed." : found.p < 0.05
    ? `More than chance would explain (p = ${found.p < 0.001 ? "below 0.001" : found.p.toFixed(3)}).` : `Could well be chance (p = ${found.p.toFixed(2)}).`;
  return el("div", {}, several ? el("h3", {}, after) : null,
    el("ul", { class: "counts" }, KINDS.filter(([key]) => found[key] || key === "gained" || key === "lost").map(([key, words]) =>
      el("li", {}, el("span", { class: `sign c-${key}` }, { gained: "▲", lost: "▼", same: "=", only: "◇" }[key]), words, el("b", {}, number(found[key]))))),
    el("p", { class: "note" }, chance));
}

function sideBySide(runs, name) {
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.summary.usage)))].sort();
  const about = ["dataset", "agent", "provider", "model", "bundle", "platform"].filter((key) => runs.some((run) => run.about[key]));
  const median = (run) => quantile(run.rollouts.map((r) => r.duration || 0).sort((a, b) => a - b), 0.5);
  const most = Math.max(...runs.map((run) => run.summary.attempts));
  const lines = [
    ["rollouts", (run) => number(run.summary.rollouts)],
    ["instances", (run) => number(run.summary.instances)],
    ["resolved rate", (run) => run.rate ? `${percent(run.rate[0])} (${interval(run.rate[1], run.rate[2])})` : "–"],
    ...Array.from({ length: most > 1 ? most : 0 }, (_, k) => [`pass@${k + 1}`, (run) => {
      const found = run.pass_at_k.find(([of]) => of === k + 1);
      return found ? `${percent(found[1])} (${interval(found[2], found[3])})` : "–";
    }]),
    ...STATUSES.filter(([key]) => runs.some((run) => run.summary[key])).map(([key, words]) => [[el("span", { class: `key f-${key}` }), words], (run) => number(run.summary[key])]),
    ["median duration", (run) => duration(median(run)) || "–"],
    ["start to end", (run) => run.summary.timing.span_s === null ? "–" : duration(run.summary.timing.span_s)],
    ...keys.map((key) => [visible(key), (run) => run.summary.usage[key] === undefined ? "–" : number(run.summary.usage[key])]),
  ];
  return el("table", { class: "plain sides" },
    el("thead", {}, el("tr", {}, el("td"), runs.map((run, i) => el("th", { scope: "col" }, name(i))))),
    el("tbody", {}, lines.map(([words, value]) => el("tr", {}, el("th", { scope: "row" }, words), runs.map((run) => el("td", {}, value(run))))),
      about.map((key) => el("tr", { class: new Set(runs.map((run) => run.about[key])).size > 1 ? "differs" : null }, el("th", { scope: "row" }, key),
        runs.map((run) => el("td", { class: "mono" }, visible(run.about[key] || "–")))))));
}
