// The start: unfold the data, draw the view that the address names, and load again while the run goes on.

for (const run of data.runs) run.rollouts.forEach((r, row) => { r.row = row; r.attempt = r.attempt || 0; });

const views = [...(data.comparison ? [["compare", "Comparison"]] : []),
  ...data.runs.map((run, i) => [String(i), data.comparison ? `${letter(i)} · ${visible(run.name)}` : visible(run.name)])];

function show(view) {
  const key = views.some(([name]) => name === view) ? view : views[0][0];
  remember({ view: key === views[0][0] ? null : key });
  header(key);
  byId("main").replaceChildren(...(key === "compare" ? compareView(show) : runView(data.runs[Number(key)], Number(key))).flat().filter(Boolean));
  for (const button of byId("tabs").children) {
    if (button.dataset.view === key) button.setAttribute("aria-current", "page");
    else button.removeAttribute("aria-current");
  }
}

function header(key) {
  const run = key === "compare" ? null : data.runs[Number(key)];
  const about = run ? Object.entries(run.about) : [];
  byId("head").replaceChildren(...[
    el("h1", {}, run ? visible(run.name) : `${data.runs.length} runs compared`),
    el("ul", { class: "about" }, about.map(([name, value]) => el("li", {}, el("span", { class: "note" }, name), " ", visible(value))),
      run && run.summary.timing.started_at !== null ? el("li", {}, el("span", { class: "note" }, "started"), " ", when(run.summary.timing.started_at)) : null,
      run && run.summary.timing.span_s !== null ? el("li", {}, el("span", { class: "note" }, "took"), " ", duration(run.summary.timing.span_s)) : null),
    live()].filter(Boolean));
}

if (views.length > 1) {
  byId("tabs").hidden = false;
  byId("tabs").append(...views.map(([key, words]) => el("button", { type: "button", "data-view": key, onclick: () => {
    remember({ page: null, sort: null, open: null, status: null, group: null, kind: null, q: null });
    show(key);
    scrollTo(0, 0);
  } }, words)));
}
byId("foot").append(`Made by agentix-runner ${data.version}, ${when(data.made_at)}.`);

// While the run goes on the page loads itself again, unless somebody reads a rollout, types or has marked text.
let following = true;
function live() {
  if (!data.live_s) return null;
  const button = el("button", { type: "button", class: "live", "aria-pressed": String(following), onclick: () => {
    following = !following;
    button.setAttribute("aria-pressed", String(following));
    button.lastChild.textContent = following ? "running, follows" : "running, stopped";
  } }, el("span", { class: "lamp", "aria-hidden": "true" }), following ? "running, follows" : "running, stopped");
  return button;
}
function kept(name, value) {
  try {
    if (value === undefined) return sessionStorage.getItem(name);
    sessionStorage.setItem(name, value);
  } catch {
    // No storage for files here: the page starts at its top after it has loaded again.
  }
  return null;
}
if (data.live_s) {
  setInterval(() => {
    if (!following || document.hidden || byId("details").open || getSelection().toString() || document.readyState !== "complete") return;
    if (document.activeElement && /^(INPUT|SELECT)$/.test(document.activeElement.tagName)) return;
    kept("scroll", `${scrollY}`);
    location.reload();
  }, Math.max(data.live_s, performance.now() / 1000 * 5) * 1000);
}

show(state.view);
const before = kept("scroll");
if (before && data.live_s) {
  // The charts draw themselves after the layout: only then is the page as long as it was.
  requestAnimationFrame(() => requestAnimationFrame(() => scrollTo(0, Number(before))));
}
kept("scroll", "");
addEventListener("hashchange", () => {
  const now = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  for (const name of Object.keys(state)) delete state[name];
  Object.assign(state, now);
  if (byId("details").open) byId("details").close();
  show(state.view);
});
