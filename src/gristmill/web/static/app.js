// The dashboard's own script: light or dark, shortcuts, the drawer, marks in tables, and when to look again.
"use strict";

// ---- light or dark: before anything is painted

const root = document.documentElement;
const kept = { get: (name) => { try { return localStorage.getItem(name); } catch { return null; } },
               set: (name, value) => { try { localStorage.setItem(name, value); } catch { /* private windows */ } } };
if (kept.get("theme")) root.dataset.theme = kept.get("theme");

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function switchTheme() {
  root.dataset.theme = isDark() ? "light" : "dark";
  kept.set("theme", root.dataset.theme);
}

// ---- live: look again at once when the server tells of a change, and every now and then, since counters change without
// being told of; never while nobody sees it

const live = { every: 1200, least: 700, at: 0, timer: 0, busy: false, failed: 0, source: null, told: false,
               heard: Date.now(), patience: 10000, opened: null, again: 15000, later: 0 };

function refresh() {
  const main = document.getElementById("live");
  clearTimeout(live.timer);
  if (!main || !main.hasAttribute("hx-get") || document.hidden || !window.htmx) return plan(live.every);
  const wait = live.at + live.least - Date.now();
  if (live.busy && -wait > live.patience) stale("no answer");
  if (live.busy || wait > 0) return plan(Math.max(wait, 50));
  if (selecting(main)) return plan(live.every);
  live.busy = true;
  live.at = Date.now();
  window.htmx.trigger(main, "refresh");
  // The server may answer with what it read just before the change: look once more when that is too old for it.
  plan(live.failed ? Math.min(1000 * 2 ** live.failed, 15000) : live.told ? 900 : live.every);
  live.told = false;
}

function plan(ms) {
  clearTimeout(live.timer);
  live.timer = setTimeout(refresh, ms);
}

// Text that somebody is about to copy is not changed under their hands.
function selecting(main) {
  const chosen = getSelection();
  return chosen && !chosen.isCollapsed && main.contains(chosen.anchorNode);
}

function mark(state, text) {
  const shown = document.getElementById("live-mark");
  if (!shown) return;
  shown.dataset.state = state;
  shown.querySelector(".text").textContent = text;
}

// What is shown is of the past: nobody may take it for the present. Without a reason, it is not.
function stale(reason) {
  const said = document.getElementById("stale");
  mark(reason ? "off" : "on", reason || "live");
  document.getElementById("live").classList.toggle("stale", Boolean(reason));
  if (!said || said.hidden === !reason) return;
  said.hidden = !reason;
  said.textContent = reason ? `${reason} since ${new Date(live.heard).toTimeString().slice(0, 8)}; this is how it was then` : "";
}

function finished(status) {
  if (status === 401) return location.reload();  // which leads to where one signs in; until then nothing is asked any more
  const ok = status > 0 && status < 400;
  live.busy = false;
  live.failed = ok ? 0 : Math.min(live.failed + 1, 5);
  if (ok) live.heard = Date.now();
  stale(ok ? "" : status === 404 ? "not there any more" : "no answer");
}

function listen() {
  clearTimeout(live.later);
  if (!document.body.dataset.events || live.opened || document.hidden) return;
  const source = new EventSource(document.body.dataset.events);
  source.onopen = () => { live.source = source; };
  source.onerror = () => {
    live.source = null;
    if (source.readyState === EventSource.CLOSED && live.opened === source) {  // the browser does not try again: we do
      live.opened = null;
      live.later = setTimeout(listen, live.again);
    }
    plan(live.every);
  };
  for (const name of ["run", "jobs", "worker", "schedule", "audit", "reset", "message"]) {
    source.addEventListener(name, () => { live.told = true; plan(Math.max(live.at + live.least - Date.now(), 0)); });
  }
  live.opened = source;
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    if (live.opened) live.opened.close();
    live.source = live.opened = null;
  } else {
    listen();
    refresh();
  }
});

// ---- marks in tables

// Not named `id`: a form would have that for its own id, and be taken for another one when the page looks again.
function boxes() { return [...document.querySelectorAll('input[name="marked"][form="bulk"]')]; }

function countMarks() {
  const shown = document.querySelector("[data-marked]");
  if (!shown) return;
  shown.dataset.first ??= shown.textContent;
  const many = boxes().filter((box) => box.checked).length;
  const all = document.querySelector('input[name="all"]');
  shown.textContent = all && all.checked ? "All that match" : many ? `${many} marked` : shown.dataset.first;
  const none = !many && !(all && all.checked);
  document.querySelectorAll(".bulk button").forEach((button) => { button.disabled = none; });
}

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-all]")) boxes().forEach((box) => { box.checked = event.target.checked; });
  if (event.target.matches('[data-all], [form="bulk"], input[name="all"]')) countMarks();
});

// ---- shortcuts

let begun = 0;  // when `g` was pressed

function typing(target) { return target.closest("input, textarea, select, [contenteditable]"); }

function rows() { return [...document.querySelectorAll("main tr[id], main ul.rows > li[id], main ul.list > li[id]")]; }

function step(by) {
  const all = rows();
  if (!all.length) return;
  const now = all.findIndex((row) => row.classList.contains("here"));
  const next = all[Math.min(Math.max(now + by, 0), all.length - 1)];
  all.forEach((row) => row.classList.toggle("here", row === next));
  next.scrollIntoView({ block: "nearest" });
  const link = next.querySelector("a[href]");
  if (link) link.focus({ preventScroll: true });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    document.getElementById("drawer").close();
    if (typing(event.target)) event.target.blur();
    return;
  }
  if (typing(event.target)) return;
  if (Date.now() - begun < 1500 && /^[a-z]$/.test(event.key)) {
    begun = 0;
    const entry = document.querySelector(`nav a[data-key="${event.key}"]`);
    if (entry) { event.preventDefault(); entry.click(); }
    return;
  }
  const does = {
    "/": () => { const field = document.getElementById("search");
                 if (field) { field.focus(); field.select(); } else location.href = `${document.body.dataset.base}/jobs#search`; },
    g: () => { begun = Date.now(); },
    j: () => step(1),
    k: () => step(-1),
    d: switchTheme,
    "?": () => document.getElementById("shortcuts").showModal(),
  }[event.key];
  if (does) { event.preventDefault(); does(); }
});

// ---- a form that was come back to shows what was written into it

window.addEventListener("pageshow", () => {
  countMarks();
  for (const form of document.querySelectorAll("details.settings form")) {
    const written = [...form.elements].some((field) => field.type !== "hidden" && "defaultValue" in field && field.value !== field.defaultValue);
    if (written) form.closest("details").open = true;
  }
});

// ---- the rest, once the page is there

document.addEventListener("DOMContentLoaded", () => {
  document.getElementById("theme").addEventListener("click", switchTheme);
  document.getElementById("help").addEventListener("click", () => document.getElementById("shortcuts").showModal());
  document.querySelector("[data-back]")?.addEventListener("click", (event) => {
    if (history.length > 1) { event.preventDefault(); history.back(); }  // with what was written into the form
  });
  if (location.hash === "#search") document.getElementById("search")?.focus();
  if (matchMedia("(max-width: 1180px)").matches) document.querySelector("details.menu").open = false;
  const drawer = document.getElementById("drawer");
  document.body.addEventListener("htmx:after:swap", (event) => {
    if (event.detail?.ctx?.target?.id === "drawer-content" && !drawer.open) drawer.show();
    countMarks();
  });
  const isLive = (event) => event.detail?.ctx?.sourceElement?.id === "live";
  document.body.addEventListener("htmx:after:request", (event) => { if (isLive(event)) finished(event.detail.ctx.response.status); });
  document.body.addEventListener("htmx:error", (event) => { if (isLive(event)) finished(0); });
  listen();
  plan(live.every);
});
