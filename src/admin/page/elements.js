"use strict";
// What the sections of the page are made of: elements, tables, words. All text is put in as text.

/** Most rows of one table, and most characters of one text. */
const ROWS = 500;
const LONGEST = 300;

const byId = (id) => document.getElementById(id);
const clip = (text, longest = LONGEST) => (text.length > longest ? `${text.slice(0, longest)}…` : text);

/** An element; children are elements, text, or nothing. */
function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) element.setAttribute(name, value);
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) element.append(child.nodeType ? child : clip(String(child)));
  }
  return element;
}

/** Makes what is in `parent` like `nodes`, and keeps elements that are there already: focus and places stay. */
function fill(parent, ...nodes) {
  const kept = new Map();
  for (const child of parent.children) if (child.dataset.key) kept.set(child.dataset.key, child);
  let at = parent.firstChild;
  for (let node of nodes.flat(Infinity)) {
    if (node === null) continue;
    if (!node.nodeType) node = document.createTextNode(clip(String(node)));
    const key = node.dataset?.key;
    const old = key ? kept.get(key) : at;
    if (!old || old.nodeName !== node.nodeName || old.dataset?.key !== key) {
      parent.insertBefore(node, at);
      continue;
    }
    if (old === at) at = at.nextSibling;
    else parent.insertBefore(old, at);
    if (old.nodeType === Node.TEXT_NODE) {
      if (old.data !== node.data) old.data = node.data;
      continue;
    }
    for (const { name } of [...old.attributes]) if (!node.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of [...node.attributes]) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    fill(old, [...node.childNodes]);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

const MARKS = { ok: "●", warn: "◐", bad: "✕", none: "○", unknown: "?" };
/** A mark and the word for it. */
const word = (kind, text) =>
  h("span", { class: `word ${kind}` }, h("span", { class: "mark", "aria-hidden": "true" }, MARKS[kind]), text);
const quiet = (...text) => h("div", { class: "quiet" }, ...text);
const pairs = (...entries) =>
  entries.filter((entry) => entry !== null).flatMap(([term, ...value]) => [h("dt", null, term), h("dd", null, ...value)]);
/** A table of rows, each of which begins with what it is about. On a phone they are laid out as blocks: what is what is
    said in words then, and the roles say that it is a table still. */
function table(titles, rows, labelled) {
  const row = (...cells) => h("tr", { role: "row" }, cells);
  const body = rows.slice(0, ROWS).map(([first, ...others]) => row(
    h("th", { scope: "row", role: "rowheader" }, first),
    others.map((cell, index) => h("td", { role: "cell", "data-label": titles[index + 1] }, cell)),
  ));
  const head = row(titles.map((title) => h("th", { scope: "col", role: "columnheader" }, title)));
  return h("table", { class: "list", role: "table", "aria-labelledby": labelled },
    h("thead", { role: "rowgroup" }, head), h("tbody", { role: "rowgroup" }, body));
}

const number = (value) => Number(value).toLocaleString("en");
const count = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;

function time(seconds) {
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return count(Math.round(seconds / 86400), "day");
}

/** A moment as a clock shows it here, with the day if it is not today. */
function clock(moment) {
  const date = new Date(moment);
  const here = date.toDateString() === new Date().toDateString();
  return here ? date.toLocaleTimeString("en-GB") : date.toLocaleString("en-GB");
}

/** How it is with a peer: kind, its state as metrics name it with what is to be said of it, meaning. */
function stateOf(peer) {
  if (!peer.live) return ["bad", "absent", "no sign of life; what it listed is remembered for a while"];
  const state = peer.bare ? "bare" : peer.target ? "target" : "live";
  const warning = (note, meaning) => ["warn", `${state}: ${note}`, meaning];
  if (!peer.initialized) return warning("not initialized", "no request is sent there");
  if (!peer.target) return warning("another server has its address", "no request is sent to this one");
  if (!peer.ready) return warning("not ready", "asked last until it is");
  if (peer.unhealthy) return warning("unhealthy", "failed, and is asked last until it answers");
  if (!peer.known) return warning("resources not current", "what it lists is what was known last");
  return ["ok", state, "requests can be sent there"];
}
