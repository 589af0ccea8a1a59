"use strict";
const CONFIG = {displayModeBar: false, responsive: true};
// Of what lies on one of the colors, which are light in both schemes.
const ON_COLOR = "#12202c";

// Between the color of float32 and that of 16 bits, by the share of the latter.
function colorOf(share) {
  const parts = (color) => color.match(/\w\w/g).map((part) => parseInt(part, 16));
  const from = parts(COLORS.float32), to = parts(COLORS.low);
  return `rgb(${from.map((part, i) => Math.round(part + share * (to[i] - part)))})`;
}

// Shows a chart in the colors of the page, which are other ones in the dark and on paper.
function show(place, {data, layout}, width) {
  const style = getComputedStyle(document.documentElement);
  const [text, line, ground] = ["--text", "--line", "--page"].map(
    (name) => style.getPropertyValue(name));
  const clear = "rgba(0, 0, 0, 0)";
  const axis = {gridcolor: line, linecolor: line, zerolinecolor: line};
  const themed = {...layout, width, paper_bgcolor: clear, plot_bgcolor: clear,
                  font: {...layout.font, color: text}};
  for (const name of ["xaxis", "yaxis"]) {
    if (layout[name]) themed[name] = {...layout[name], ...axis};
  }
  const traces = data.map((trace) => {
    const colored = {...trace};
    // What is too narrow to be seen is a line between its neighbors.
    if (trace.type === "icicle") {
      colored.marker = {...trace.marker, line: {width: 1, color: ground}};
    }
    for (const name of ["error_x", "error_y"]) {
      if (trace[name]) colored[name] = {...trace[name], color: text, thickness: 1.5};
    }
    return colored;
  });
  place.shown = {data, layout};
  return Plotly.react(place, traces, themed, CONFIG);
}

// Slices beside each other, levels, and the least share of the whole that is divided.
const BESIDE = 150, LEVELS = 5, LEAST = 0.004;
// What tf-amp puts before the names of its own scopes.
const OWN = /^tf_amp_/;

// Milliseconds of each scope, and what is in it, the largest first; -1 is the whole.
function scopesOf(tree) {
  const scopes = new Map([[-1, {label: tree.title, total: 0, low: 0, inner: []}]]);
  tree.scopes.forEach(([outer, label], number) => {
    const words = label.replace(OWN, "tf-amp: ");
    scopes.set(number, {label: words, total: 0, low: 0, inner: []});
    scopes.get(outer).inner.push(scopes.get(number));
  });
  tree.nodes.forEach(([scope, label, , total, type, , prefix], node) => {
    const low = tree.types[type].endsWith("16") ? total : 0;
    const gradient = /gradient(s|_tape)\/$/.test(tree.prefixes[prefix]);
    const shown = gradient ? `∇ ${label}` : label;
    scopes.get(scope).inner.push({label: shown, node, total, low, type: tree.types[type]});
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
  const types = [], hatches = [];
  function add(id, parent, part, value, means) {
    ids.push(id); labels.push(part.label); parents.push(parent); values.push(value);
    const share = part.low / (part.total || 1);
    colors.push(colorOf(share)); meaning.push(means);
    hatches.push(share ? "" : "\\");
    types.push(part.type || (share ? `${Math.round(100 * share)}% in 16 bits` : "float32"));
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
      marker: {
        colors,
        pattern: {shape: hatches, fillmode: "overlay", fgcolor: "#8592a8", fgopacity: 1,
                  bgcolor: colors, size: 8, solidity: 0.12},
      },
      leaf: {opacity: 1}, tiling: {orientation: "v"}, pathbar: {visible: false},
      text: types, textinfo: "label+text", textfont: {color: ON_COLOR},
      hovertemplate: "%{label}<br>%{value:.3g} ms, %{text}<extra></extra>",
    }],
    // What is too small for its label has none.
    layout: {height: 440, margin: {l: 2, r: 2, t: 2, b: 2},
             uniformtext: {minsize: 10, mode: "hide"},
             font: {family: "system-ui, sans-serif", size: 12}},
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
    lineOf("time", `${float32} ms in float32, ${now} ms as planned, casts included; `,
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
  function showLast() {
    chart = icicleOf(path[path.length - 1]);
    return show(place, chart);
  }
  showLast().then(() => place.on("plotly_icicleclick", (event) => {
    const {node, up, ...inner} = chart.meaning[event.points[0].pointNumber];
    if (node !== undefined) showDetails(tree, node, details);
    else if (!up) { path.push(inner); showLast(); }
    else if (path.length > 1) { path.pop(); showLast(); }
    return false;
  }));
}

function draw(place) {
  if (place.shown) return;
  place.style.minHeight = 0;
  const name = place.id.replace("chart-", ""), tree = TREES[name];
  if (tree) drawTree(tree, place, document.getElementById(`details-${name}`));
  else show(place, FIGURES[name]);
}

// Wide enough for a sheet of A4 without its margins.
const PAPER_WIDTH = 690;

// Redraws what is there; with a width all of it, whether it was looked at or not.
function redraw(width) {
  document.documentElement.classList.toggle("paper", Boolean(width));
  for (const place of document.querySelectorAll(".chart")) {
    if (width && place.offsetParent) draw(place);
    if (place.shown) show(place, place.shown, width);
  }
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
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw());
  addEventListener("beforeprint", () => redraw(PAPER_WIDTH));
  addEventListener("afterprint", () => redraw());
}
requestAnimationFrame(() => setTimeout(start));
