// Shows the status that came with the page, then asks for it again and again.

/** Milliseconds between two questions, and how long an answer is waited for. */
const EVERY = 2000;
const PATIENCE = 5000;

let latest = JSON.parse(byId("status").textContent);
let heard = Date.now();
/** The last question had no answer. */
let lost = false;
let asking = false;
let timer = 0;
/** Groups whose resources are shown. */
const opened = new Set();

/** Seconds from a moment to what is shown, by the proxy's clock. */
const since = (moment) => Math.max(0, (Date.parse(latest.time) - Date.parse(moment)) / 1000);

function showHead() {
  const { server } = latest;
  const name = server.id ?? "no server ID yet";
  const apiserver = latest.facts?.apiserverVersion;
  fill(byId("version"), `${server.version} at ${server.endpoint}${apiserver ? `, apiserver ${clip(apiserver)}` : ""}`);
  fill(byId("name"), name);
  const why = server.missing.join("; ");
  const [kind, text] = lost
    ? ["bad", `No answer: the proxy does not answer. What is shown is of ${clock(heard)}.`]
    : server.ready ? ["ok", "Ready"] : ["bad", `Not ready: ${why}`];
  const state = byId("state");
  state.className = `state ${kind}${lost ? " lost" : ""}`;
  // It is read aloud when it changes.
  if (state.textContent !== text) state.textContent = text;
  document.body.className = lost ? "lost" : "";
  document.title = clip(`${lost ? "No answer" : server.ready ? "Ready" : "Not ready"} – ${name} – kube-interop-proxy`);
}

function showAge() {
  const age = time(Math.round((Date.now() - heard) / 1000)).replace(".0", "");
  fill(byId("refreshed"), lost ? `Stale: ${age} old` : `Live, ${age} old`);
}

function showServer() {
  const { config, server, watches } = latest;
  const checks = server.checks.map(({ name, missing }) =>
    h("li", null, missing === null ? word("ok", "ok") : word("bad", "failed"), ` ${name}`,
      missing === null ? null : quiet(missing)));
  fill(byId("readiness"), checks);
  const lease = { proxy: "kept by this proxy", other: "kept by something else, most likely the apiserver" };
  fill(byId("server"), pairs(
    ["Server ID", server.id ?? "not known yet"],
    ["Apiserver ID", server.apiserverId ?? "not known yet"],
    ["Endpoint", server.endpoint],
    ["Proxy", server.version],
    ["Apiserver", latest.facts?.apiserverVersion ?? "version not known"],
    ["Compatible with", server.compatibilityVersion ?? "not known"],
    ["Mixed versions", latest.window
      ? word("warn", `${latest.window.versions.join(" and ")}, policy ${latest.window.policy}`) : "no",
      latest.window ? quiet(`since ${latest.window.since}`) : ""],
    ["History", server.historyStart === null ? "not known" : `since revision ${number(server.historyStart)}`],
    ["Watches", `${number(watches.open)} open, ${number(watches.held)} held`,
      quiet(`${number(watches.continued)} handed over to another server, ${number(watches.ended)} ended instead`)],
    ["Lease", lease[server.identityLeaseKeptBy] ?? "none kept by the proxy"],
    ["Only here", count(latest.resources.filter((it) => it.local && !it.peers.length).length, "resource")],
    ["Configuration", config.problems.length ? word("bad", "the file cannot be used")
      : config.needsRestart.length ? word("warn", "the next start changes more")
      : config.reloaded === null ? "as at the start" : `read again ${time(since(config.reloaded))} ago`,
      [...config.problems, ...config.needsRestart].slice(0, ROWS).map((line) => quiet(clip(line)))],
  ));
}

function showEtcd() {
  const { etcd, facts } = latest;
  const undecodable = facts?.undecodable ?? [];
  const claims = facts?.claims ?? [];
  const notFollowed = facts?.notFollowed ?? [];
  const unexplained = (facts?.advertised ?? []).filter((known) => known.withoutProxy);
  fill(byId("etcd"), pairs(
    ["State", etcd.synced ? word("ok", "synced") : word("bad", "never read completely")],
    ["Revision", number(etcd.revision)],
    ["Age", `${time(etcd.ageSeconds)} since its last answer`],
    ["Lists", number(etcd.lists)],
    ["Restores", number(etcd.restores)],
    ["Undecodable", undecodable.length ? word("bad", count(undecodable.length, "value")) : "none",
      undecodable.slice(0, ROWS).map((value) => quiet(clip(value.key), `: ${value.error}`))],
    ["Not followed", notFollowed.length ? word("warn", notFollowed.join(", ")) : "none",
      quiet(notFollowed.length ? "etcd's role does not permit reading it" : "")],
    ["Without proxy", unexplained.length ? count(unexplained.length, "advertised address", "advertised addresses") : "none",
      unexplained.slice(0, ROWS).map(({ address, withoutProxy }) => quiet(address, `: ${withoutProxy}`))],
    ["Claims", claims.length ? word("bad", "a server ID is used twice") : "none",
      claims.slice(0, ROWS).map((claim) => quiet(claim))],
  ));
  const topics = (facts?.topics ?? []).map((topic) =>
    [topic.topic, number(topic.revision), number(topic.lists)]);
  fill(byId("topics"), table(["Topic", "Revision", "Lists"], topics, "etcd-h"));
}

function showPeers() {
  const rows = latest.peers.map((peer) => {
    const [kind, text, meaning] = stateOf(peer);
    const listed = peer.resources === null ? "not known what it lists" : count(peer.resources, "resource");
    return [
      [h("strong", null, peer.id), quiet(peer.endpoint, peer.bare ? ", without a proxy" : peer.native ? ", native mixed version proxy" : "")],
      [word(kind, text), quiet(meaning)],
      [peer.binaryVersion ?? "not known", quiet(peer.compatibilityVersion ? `as ${peer.compatibilityVersion}` : "")],
      listed,
    ];
  });
  const titles = ["Server", "State", "Version", "Lists"];
  fill(byId("peers"), rows.length ? table(titles, rows, "peers-h") : quiet("No other server is known."));
}

/** Servers, and groups with who lists how much of them. */
function matrix() {
  const { server, peers } = latest;
  const own = ["ok", "this server"];
  const servers = [
    { id: server.id ?? "this server", state: own, known: server.discoveryKnown },
    ...peers.map((peer) => ({ id: peer.id, state: stateOf(peer), known: peer.resources !== null })),
  ];
  const place = new Map(peers.map((peer, index) => [peer.id, index + 1]));
  const groups = new Map();
  for (const listed of latest.resources) {
    const lists = servers.map(() => false);
    lists[0] = listed.local;
    for (const id of [...listed.peers, ...listed.absent]) lists[place.get(id)] = true;
    const ofKnown = lists.filter((_, index) => servers[index].known);
    const name = [listed.resource, listed.subresource].filter((part) => part).join("/");
    const differs = ofKnown.some((each) => each !== ofKnown[0]);
    if (!groups.has(listed.group)) groups.set(listed.group, { resources: [], versions: new Set(), differs: false });
    const group = groups.get(listed.group);
    group.resources.push({ version: listed.version, name, lists, differs });
    group.versions.add(listed.version);
    group.differs ||= differs;
  }
  return { servers, groups: [...groups] };
}

const CORE = "core group";

function cell(known, has, all) {
  if (!known) return h("td", null, word("unknown", "not known"));
  if (has === 0) return h("td", null, word("none", all === 1 ? "no" : "none"));
  if (has < all) return h("td", null, word("warn", `${has} of ${all}`));
  return h("td", null, word("ok", all === 1 ? "yes" : `all ${all}`));
}

function groupRows([name, group], servers) {
  const all = group.resources.length;
  const shown = opened.has(name);
  const button = h("button", { type: "button", "aria-expanded": String(shown), "data-group": name },
    h("span", { class: "mark", "aria-hidden": "true" }, shown ? "▾" : "▸"), name || CORE);
  const cells = servers.map(({ known }, index) =>
    cell(known, group.resources.filter((resource) => resource.lists[index]).length, all));
  const rows = [h("tr", { "data-key": `group ${name}` },
    h("th", { scope: "row" }, button, quiet([...group.versions].join(", "))), cells)];
  if (!shown) return rows;
  const sorted = [...group.resources].sort((one, other) => other.differs - one.differs);
  for (const { version, name: resource, lists } of sorted.slice(0, ROWS)) {
    rows.push(h("tr", { class: "detail", "data-key": `resource ${name} ${version} ${resource}` },
      h("th", { scope: "row" }, `${version} `, resource),
      servers.map(({ known }, index) => cell(known, lists[index] ? 1 : 0, 1))));
  }
  return rows;
}

function groupTable(groups, servers, labelled) {
  if (!groups.length) return [];
  const titles = servers.map(({ id, state: [kind, text] }) =>
    h("th", { scope: "col" }, clip(id, 60), kind === "ok" ? quiet(text) : word(kind, text)));
  const rows = groups.slice(0, ROWS).flatMap((group) => groupRows(group, servers));
  return [h("table", { "aria-labelledby": labelled },
    h("thead", null, h("tr", null, h("th", { scope: "col" }, "Group"), titles)), h("tbody", null, rows))];
}

function showMatrix() {
  const { servers, groups } = matrix();
  const wanted = byId("filter").value.trim().toLowerCase();
  const fits = ([name, group]) => !wanted || (name || CORE).toLowerCase().includes(wanted) ||
    group.resources.some((resource) => resource.name.toLowerCase().includes(wanted));
  const different = groups.filter(([, group]) => group.differs);
  const alike = groups.filter(([, group]) => !group.differs);
  const [some, rest] = [different.filter(fits), alike.filter(fits)];
  const compared = servers.filter(({ known }) => known).length;
  const of = (found, all) => (wanted ? `${found.length} of ` : "") + count(all.length, "group");
  fill(byId("differences-note"), compared < 2
    ? "There is nothing to compare: what servers list is known for fewer than two of them."
    : !different.length ? `None: ${count(compared, "server")} list the same.`
    : `${of(some, different)}, not listed alike by ${count(compared, "server")}.`);
  fill(byId("differences"), groupTable(some, servers, "differences-h"));
  fill(byId("alike-note"), `Alike: ${of(rest, alike)}`);
  // Nobody sees it, and most is there.
  const seen = byId("alike-details").open;
  fill(byId("alike"), seen ? groupTable(rest, servers, "alike-note") : []);
  showCustom();
}

function showCustom() {
  const { definitions, aggregated } = latest.custom;
  const groups = Object.entries(definitions);
  const all = groups.reduce((sum, [, resources]) => sum + resources.length, 0);
  fill(byId("custom-note"), `Served by every apiserver: ${count(all, "custom resource")}, ` +
    count(aggregated.length, "version of aggregated APIs", "versions of aggregated APIs"));
  const rows = groups.map(([group, resources]) => [group, "custom", h("span", null, resources.slice(0, ROWS)
    .map((resource, index) => `${index ? ", " : ""}${clip(resource)}`))]);
  for (const version of aggregated) rows.push([version, "aggregated", ""]);
  const seen = byId("custom-details").open && rows.length;
  fill(byId("custom"), seen ? table(["Group", "Kind", "Resources"], rows, "custom-note") : []);
}

function showCertificates() {
  const { broken, expire } = latest.certificates;
  const rows = Object.entries(expire).map(([file, end]) => {
    if (end === null) return [file, word("warn", "at no known time"), ""];
    const left = (Date.parse(end) - Date.parse(latest.time)) / 1000;
    const kind = left <= 0 ? "bad" : left < 30 * 86400 ? "warn" : "ok";
    const text = left <= 0 ? `expired ${time(-left)} ago` : `in ${time(left)}`;
    return [file, word(kind, text), h("time", { datetime: end }, end.slice(0, 10))];
  });
  const bad = broken.map((group) =>
    [group, word("bad", "broken"), "The new files cannot be used; the previous ones stay in use."]);
  fill(byId("certificates"), table(["File", "First expiry", "Day"], [...bad, ...rows], "certificates-h"));
}

function showDiscovery() {
  const { added, current, sources } = latest.discovery;
  const stale = added.filter((version) => version.stale).length;
  fill(byId("discovery-note"), `${count(added.length, "group version")} added to what the apiserver here lists` +
    `${stale ? `, ${stale} of them stale` : ""}${current ? "." : ", from before its restart."}`);
  const rows = sources.map((source) => [
    [source.servers.map((id) => h("div", null, id)), quiet(source.binaryVersion ?? "")],
    [word({ read: "ok", failing: "bad" }[source.state] ?? "warn", source.state), quiet(source.error ?? "")],
    [count(source.groupVersions, "group version"), quiet(source.undescribed ? `${source.undescribed} by name only` : "")],
  ]);
  fill(byId("discovery"), rows.length ? table(["Source", "State", "Adds"], rows, "discovery-h") : []);
}

function show() {
  showHead();
  showAge();
  showServer();
  showEtcd();
  showPeers();
  showMatrix();
  showCertificates();
  showDiscovery();
}

async function ask() {
  clearTimeout(timer);
  if (asking || document.hidden) return;
  asking = true;
  try {
    const answer = await fetch("?format=json", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
    if (!answer.ok) throw new Error(answer.statusText);
    latest = await answer.json();
    heard = Date.now();
    lost = false;
  } catch {
    lost = true;
  }
  asking = false;
  timer = setTimeout(ask, EVERY);
  show();
}

document.addEventListener("click", (event) => {
  const group = event.target.closest?.("button[data-group]")?.dataset.group;
  if (group === undefined) return;
  if (!opened.delete(group)) opened.add(group);
  showMatrix();
});
byId("filter").addEventListener("input", () => {
  if (byId("filter").value.trim()) byId("alike-details").open = true;
  showMatrix();
});
for (const id of ["alike-details", "custom-details"]) byId(id).addEventListener("toggle", showMatrix);
document.addEventListener("visibilitychange", ask);
setInterval(() => document.hidden || showAge(), 1000);
show();
timer = setTimeout(ask, EVERY);
