// Elements, text and numbers. Text from a run is untrusted: it gets into the page as text nodes and attributes only.

const data = JSON.parse(document.getElementById("data").textContent);
const collator = new Intl.Collator("en", { numeric: true });
const byId = (id) => document.getElementById(id);

const STATUSES = [
  ["resolved", "resolved"], ["unresolved", "unresolved"], ["empty_patch", "empty patch"],
  ["setup_failed", "setup failed"], ["error", "error"], ["not_scored", "not scored"], ["not_run", "not run"],
];
const STATUS_WORDS = Object.fromEntries(STATUSES);
const STATUS_RANK = Object.fromEntries(["error", "setup_failed", "empty_patch", "unresolved", "not_run", "not_scored",
  "resolved"].map((name, rank) => [name, rank]));
const PHASES = ["session", "setup", "agent", "score", "teardown"];

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// Control characters and those that reorder text are shown as escapes, in ids, patches and logs alike.
const ODD = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
const escaped = (char) => {
  const code = char.charCodeAt(0);
  if (code >= 0xdc80 && code <= 0xdcff) return "\\x" + (code - 0xdc00).toString(16); // a byte that was not UTF-8
  return code < 256 ? "\\x" + code.toString(16).padStart(2, "0") : "\\u" + code.toString(16).padStart(4, "0");
};
const visible = (text) => String(text).replace(ODD, escaped);
const oneLine = (text) => visible(String(text).replace(/[\s\u2028\u2029]+/g, " ").trim());
// What a program printed for a terminal: without colours, and a line that was drawn over as it was at last.
const printed = (text) => visible(text.replace(/\u001b\[[0-9;?]*[A-Za-z]/g, "").replace(/\r\n/g, "\n")
  .replace(/[^\n]*\r(?=[^\n])/g, "").replace(/\r/g, ""));

function duration(s) {
  if (s === null || s === undefined) return "";
  if (s < 0.9995) return `${Math.round(s * 1000)} ms`;
  if (s < 59.95) return `${s.toFixed(1)} s`;
  const whole = Math.round(s);
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${String(whole % 60).padStart(2, "0")}s`;
  if (whole < 172800) return `${Math.floor(whole / 3600)}h ${String(Math.floor(whole / 60) % 60).padStart(2, "0")}m`;
  return `${(whole / 86400).toFixed(1)} d`;
}
const number = (value) => value === null || value === undefined ? ""
  : Number(value).toLocaleString("en", Math.abs(value) >= 1000 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 4 });
const short = (value) => Number(value).toLocaleString("en", { notation: "compact", maximumSignificantDigits: 3 });
const percent = (value, digits = 1) => `${(100 * value).toFixed(digits)} %`;
const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
const when = (unix) => new Date(unix * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
const interval = (low, high) => `${(100 * low).toFixed(1)} to ${(100 * high).toFixed(1)} %`;
const sum = (values) => values.reduce((total, value) => total + value, 0);

function quantile(sorted, q) {
  if (!sorted.length) return null;
  const at = q * (sorted.length - 1), low = Math.floor(at), high = Math.ceil(at);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - low);
}

const pill = (status) => el("span", { class: `pill s-${status}` }, STATUS_WORDS[status] || status);
const panel = (title, note, ...children) =>
  el("section", { class: "panel" }, el("h2", {}, title), note ? el("p", { class: "note" }, note) : null, ...children);

// Where the reader is: in the address, so that a link and a reload lead to the same view.
const state = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
function remember(changes) {
  for (const [name, value] of Object.entries(changes)) {
    if (value === "" || value === null || value === undefined) delete state[name];
    else state[name] = String(value);
  }
  try {
    history.replaceState(null, "", "#" + new URLSearchParams(state));
  } catch {
    // A browser that allows no address to a file: the view is lost at a reload, nothing else.
  }
}

// A hint beside the pointer. `lines` are [label, value]; the first is the title.
function tip(event, title, lines) {
  const box = byId("tip");
  box.replaceChildren(el("strong", {}, title), el("dl", {}, lines.map(([name, value]) =>
    [el("dt", {}, name), el("dd", {}, value)])));
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  box.style.left = `${Math.max(8, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  box.style.top = `${event.clientY + 18 + height > innerHeight ? Math.max(8, event.clientY - height - 12) : event.clientY + 18}px`;
}
const noTip = () => { byId("tip").hidden = true; };
