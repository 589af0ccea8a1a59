"use strict";
const FLOAT32 = [141, 153, 174], LOW = [42, 157, 143];
const CONFIG = {displayModeBar: false, responsive: true};

// Between the color of float32 and that of 16 bits, by the share of the latter.
function colorOf(share) {
  const mixed = FLOAT32.map((from, i) => Math.round(from + share * (LOW[i] - from)));
  return `rgb(${mixed})`;
}

// Slices beside each other, levels, and the least share of the whole that is divided.
const BESIDE = 150, LEVELS = 5, LEAST = 0.004;

// Milliseconds of each scope, and what is in it, the largest first; -1 is the whole.
function scopesOf(tree) {
  const scopes = new Map([[-1, {label: tree.title, total: 0, low: 0, inner: []}]]);
  tree.scopes.forEach(([outer, label], number) => {
    scopes.set(number, {label, number, total: 0, low: 0, inner: []});
    scopes.get(outer).inner.push(scopes.get(number));
  });
  tree.nodes.forEach(([scope, label, , total, type, , prefix], node) => {
    const low = tree.types[type].endsWith("16") ? total : 0;
    const gradient = /gradient(s|_tape)\/$/.test(tree.prefixes[prefix]);
    scopes.get(scope).inner.push({label: gradient ? `∇ ${label}` : label, node, total, low});
    for (let at = scope; ; at = tree.scopes[at][0]) {
      scopes.get(at).total += total;
      scopes.get(at).low += low;
      if (at < 0) break;
    }
  });
  for (const scope of scopes.values()) scope.inner.sort((a, b) => b.total - a.total);
  return scopes;
}

// A chart of one scope without so many of its largest parts.
function icicleOf({scope, begin}) {
  const ids = [], labels = [], parents = [], values = [], colors = [], meaning = [];
  function add(id, parent, part, value, means) {
    ids.push(id); labels.push(part.label); parents.push(parent); values.push(value);
    colors.push(colorOf(part.low / (part.total || 1))); meaning.push(means);
  }
  function divide(id, inside, begin, level) {
    const rest = inside.inner.slice(begin + BESIDE);
    inside.inner.slice(begin, begin + BESIDE).forEach((part, number) => {
      const own = `${id}.${number}`;
      const divided = part.inner && level < LEVELS && part.total >= LEAST * scope.total;
      add(own, id, part, divided ? 0 : part.total,
          part.inner ? {scope: part, begin: 0} : {node: part.node});
      if (divided) divide(own, part, 0, level + 1);
    });
    if (!rest.length) return;
    const sum = (name) => rest.reduce((before, part) => before + part[name], 0);
    const more = {label: `${rest.length} more`, total: sum("total"), low: sum("low")};
    add(`${id}.more`, id, more, more.total, {scope: inside, begin: begin + BESIDE});
  }
  add("0", "", scope, 0, {up: true});
  divide("0", scope, begin, 2);
  return {
    meaning,
    data: [{
      type: "icicle", ids, labels, parents, values, branchvalues: "remainder",
      marker: {colors, line: {width: 0.5, color: "white"}},
      tiling: {orientation: "v"}, pathbar: {visible: false},
      hovertemplate: "%{label}<br>%{value:.4g} ms<extra></extra>",
    }],
    layout: {height: 460, margin: {l: 4, r: 4, t: 4, b: 4},
             font: {family: "system-ui, sans-serif"}},
  };
}

function namesOf(tree, number) {
  const [scope, label, , , , , prefix] = tree.nodes[number], scopes = [];
  for (let at = scope; at >= 0; at = tree.scopes[at][0]) scopes.unshift(tree.scopes[at][1]);
  const own = [...scopes, label].join("/");
  return {full: tree.prefixes[prefix] + own, own, layer: scopes.join("/")};
}

function literal(name) {
  return name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}

function lineOf(title, ...parts) {
  const line = document.createElement("div"), strong = document.createElement("b");
  strong.textContent = `${title}: `;
  line.append(strong, ...parts);
  return line;
}

// Says for a while what was done; where a browser refuses to copy, the text is selected.
async function copyText(code, button) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "copied";
  } catch {
    getSelection().selectAllChildren(code);
    button.textContent = "selected";
  }
  setTimeout(() => { button.textContent = "copy"; }, 2000);
}

function patternLine(title, pattern) {
  const code = document.createElement("code"), copy = document.createElement("button");
  code.textContent = pattern; copy.textContent = "copy";
  copy.onclick = () => copyText(code, copy);
  return lineOf(title, code, " ", copy);
}

function showDetails(tree, number, place) {
  const [, , float32, now, type, reason] = tree.nodes[number];
  const {full, own, layer} = namesOf(tree, number);
  const lines = [
    lineOf("operation", full),
    lineOf("type", tree.types[type]),
    lineOf("why", tree.reasons[reason]),
    lineOf("price", `${float32} ms in float32, ${now} ms as planned, casts included; `,
           tree.details[number]),
    patternLine("TF_AMP_EXCLUDE keeps it in float32 by", `^${literal(own)}$`),
  ];
  if (layer) lines.push(patternLine("its layer by", `^${literal(layer)}/`));
  place.replaceChildren(...lines);
  place.hidden = false;
}

function drawTree(tree, place, details) {
  const path = [{scope: scopesOf(tree).get(-1), begin: 0}];
  let chart;
  function show() {
    chart = icicleOf(path[path.length - 1]);
    return Plotly.react(place, chart.data, chart.layout, CONFIG);
  }
  show().then(() => place.on("plotly_icicleclick", (event) => {
    const {node, up, ...inner} = chart.meaning[event.points[0].pointNumber];
    if (node !== undefined) showDetails(tree, node, details);
    else if (!up) { path.push(inner); show(); }
    else if (path.length > 1) { path.pop(); show(); }
    return false;
  }));
}

function draw(place) {
  place.style.minHeight = 0;
  const number = place.id.replace("chart-", ""), tree = TREES[number];
  if (tree) drawTree(tree, place, document.getElementById(`details-${number}`));
  else Plotly.newPlot(place, FIGURES[number].data, FIGURES[number].layout, CONFIG);
}

// Plotly takes a second or two to start, so the page is shown before. What is far down is
// drawn when it comes near.
function start() {
  const library = document.createElement("script");
  library.text = document.getElementById("plotly").text;
  document.head.append(library);
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) {
      watcher.unobserve(entry.target);
      draw(entry.target);
    }
  }, {rootMargin: "600px"});
  document.querySelectorAll(".chart").forEach((place) => watcher.observe(place));
}
requestAnimationFrame(() => setTimeout(start));
