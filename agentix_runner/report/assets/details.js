// One rollout in full, in a dialog. Its details are packed in the page, and unpacked when it is opened.

const SHOWN_LINES = 1500; // of a patch, at first
const MORE_LINES = 5000; // and each time that more are asked for
const LONGEST_LINE = 4000;

async function unpack(run, row) {
  if (!byId(`details-${run}-${row}`) && document.readyState === "loading") {
    await new Promise((resolve) => document.addEventListener("DOMContentLoaded", resolve, { once: true }));
  }
  const packed = byId(`details-${run}-${row}`);
  if (!packed) return "The page was too large to hold these details.";
  if (!window.DecompressionStream) return "This browser can't unpack the details; a newer one can.";
  try {
    const bytes = Uint8Array.from(atob(packed.textContent), (char) => char.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  } catch (problem) {
    return `The details can't be read (${problem.message}).`;
  }
}

const details = { run: 0, rollout: null, list: [], turn: 0 };

async function openDetails(run, rollout, list) {
  const box = byId("details"), turn = ++details.turn;
  Object.assign(details, { run, rollout, list });
  remember({ open: rollout.row });
  const at = list.indexOf(rollout), focused = box.contains(document.activeElement) && document.activeElement.ariaLabel;
  const step = (by, words, sign) => el("button", { type: "button", class: "icon", "aria-label": words, title: words,
    disabled: at < 0 || !list[at + by], onclick: () => openDetails(run, list[at + by], list) }, sign);
  const body = el("div", { class: "body" }, el("p", { class: "note" }, "Unpacking…"));
  const attempt = rollout.attempt ? ` · attempt ${rollout.attempt}` : "";
  box.replaceChildren(
    el("header", {}, el("div", {}, pill(rollout.status), el("span", { class: "note" }, `${data.runs[run].name}${attempt}`)),
      el("div", { class: "buttons" }, step(-1, "Previous rollout", "↑"), step(1, "Next rollout", "↓"),
        el("button", { type: "button", class: "icon", "aria-label": "Close", title: "Close", onclick: () => box.close() }, "✕")),
      el("h2", { id: "details-title", tabindex: -1 }, visible(rollout.id))),
    body);
  if (!box.open) box.showModal();
  // The focus stays on the button that was pressed, else it goes to the title: keys work on from there.
  const again = focused && box.querySelector(`button[aria-label="${focused}"]:enabled`);
  (again || byId("details-title")).focus();
  const found = await unpack(run, rollout.row);
  if (turn !== details.turn) return;
  body.replaceChildren(...(typeof found === "string" ? [times(rollout), failed(rollout, {}), el("p", { class: "note" }, found)] : [
    times(rollout), failed(rollout, found), ...patch(run, found), ...bag("Score", found.score), ...info(rollout, found), ...log(run, found), ...saved(run, found),
  ].filter(Boolean)));
  body.scrollTop = 0;
}
byId("details").addEventListener("close", () => { details.turn++; details.rollout = null; remember({ open: null }); });
byId("details").addEventListener("click", (event) => { if (event.target === byId("details")) byId("details").close(); });
byId("details").addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1, j: 1, k: -1 }[event.key], next = details.list[details.list.indexOf(details.rollout) + by];
  if (by && next && !event.ctrlKey && !event.metaKey && !event.altKey) openDetails(details.run, next, details.list);
});

const section = (title, note, ...children) =>
  el("details", { open: true }, el("summary", {}, title, note ? el("span", { class: "note" }, note) : null), ...children);

function times(r) {
  const longest = r.duration || 1;
  return el("section", { class: "times" }, chart(phaseSums(r).map(([name, s]) => `${name} ${duration(s)}`).join(", "),
    (width) => phaseBar(r, longest, width, 12)),
  el("ul", { class: "legend" }, phaseSums(r).map(([name, s]) => el("li", {}, el("span", { class: `key f-${name}` }), `${name} ${duration(s)}`)),
    el("li", {}, el("strong", {}, `${duration(r.duration)} in all`))),
  r.started === undefined ? null : el("p", { class: "note" }, `started ${when(r.started)}`));
}

function failed(r, found) {
  if (!r.error) return null;
  const where = [r.phase && r.phase !== "unknown" ? `in ${visible(r.phase)}` : null, found.transient ? "may well work another time" : null];
  return section("Error", where.filter(Boolean).join(", "), el("p", { class: "error" }, visible(found.error || r.error)),
    found.traceback ? el("pre", { tabindex: 0 }, printed(found.traceback)) : null);
}

function patch(run, found) {
  if (!found.patch) return [section("Patch", "", el("p", { class: "empty" }, "There is none."))];
  const lines = found.patch.split("\n");
  if (lines[lines.length - 1] === "") lines.pop();
  const cut = found.patch_size > found.patch.length;
  const box = el("div", { class: "diff", tabindex: 0, role: "region", "aria-label": "Patch" }), grid = el("div", { class: "lines" });
  box.append(grid);
  const counts = { old: 0, new: 0, inHunk: false }, out = [box];
  const more = el("button", { type: "button", class: "more", onclick: () => draw(MORE_LINES) });
  let drawn = 0;
  const draw = (count) => {
    grid.append(...lines.slice(drawn, drawn + count).map((text) => diffLine(text, counts)));
    drawn = Math.min(drawn + count, lines.length);
    more.textContent = `Show ${plural(Math.min(MORE_LINES, lines.length - drawn), "more line")} of ${number(lines.length - drawn)}`;
    more.hidden = drawn >= lines.length;
  };
  draw(SHOWN_LINES);
  out.push(more);
  if (cut) out.push(el("p", { class: "note" }, `The first ${number(found.patch.length)} of ${number(found.patch_size)} characters; all of it is in ${data.runs[run].name}/${found.folder}/patch.diff.`));
  return [section("Patch", plural(lines.length, "line"), ...out)];
}

function diffLine(text, counts) {
  let kind = "", old = "", fresh = "";
  const hunk = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/.exec(text);
  if (hunk) {
    kind = "hunk"; counts.old = Number(hunk[1]); counts.new = Number(hunk[2]); counts.inHunk = true;
  } else if (/^(diff |index |--- |\+\+\+ |new file|deleted file|rename |similarity |old mode|new mode|Binary )/.test(text) && (!counts.inHunk || text.startsWith("diff "))) {
    kind = text.startsWith("diff ") ? "file" : "meta"; counts.inHunk = false;
  } else if (counts.inHunk) {
    if (text.startsWith("+")) { kind = "add"; fresh = counts.new++; }
    else if (text.startsWith("-")) { kind = "del"; old = counts.old++; }
    else if (text.startsWith("\\")) kind = "meta";
    else { old = counts.old++; fresh = counts.new++; }
  }
  const long = text.length - LONGEST_LINE;
  return el("div", { class: kind || null }, el("i", { "data-n": old }), el("i", { "data-n": fresh }),
    el("code", {}, visible(long > 0 ? text.slice(0, LONGEST_LINE) : text) || " ", long > 0 ? el("em", {}, ` … ${plural(long, "character")} more`) : null));
}

function bag(title, pairs, note = "") {
  if (!pairs) return [];
  return [section(title, note, el("dl", { class: "bag" }, pairs.map(([key, value]) => [el("dt", {}, visible(key)),
    el("dd", {}, value.includes("\n") || value.length > 200 ? el("pre", { tabindex: 0 }, printed(value)) : visible(value))])))];
}

function info(r, found) {
  const own = [];
  if (found.model) own.push(["model", found.model]);
  if (found.agent_exit !== undefined) own.push(["agent's exit code", String(found.agent_exit)]);
  return bag("Agent", own.length || found.info ? own.concat(found.info || []) : null);
}

function log(run, found) {
  if (!found.log) return [];
  const where = `${data.runs[run].name}/${found.folder}/sandbox.log`, text = printed(found.log).replace(/\n$/, "");
  const note = found.log_size > found.log.length + 1000 ? `the end of ${short(found.log_size)}B, all of it in ${where}` : "";
  const box = el("pre", { tabindex: 0, class: "log" }, text);
  requestAnimationFrame(() => { box.scrollTop = box.scrollHeight; });
  return [section("Log", note, box)];
}

const saved = (run, found) => found.files ? [section("Files", `saved by the agent in ${data.runs[run].name}/${found.folder}`,
  el("ul", { class: "files" }, found.files.map((name) => el("li", {}, visible(name)))))] : [];
