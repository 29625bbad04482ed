"use strict";
// Everything here makes more of what is readable without it.

// Tables whose columns sort.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const value = (cell) => {
    const number = parseFloat(cell.dataset.sort ?? cell.textContent.replace(/,/g, ""));
    return Number.isNaN(number) ? cell.textContent.trim().toLowerCase() : number;
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const body = table.tBodies[0];
      const rows = [...body.rows].sort((one, two) => {
        const a = value(one.cells[column]), b = value(two.cells[column]);
        if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
        return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1);
      });
      body.append(...rows);
    });
  });
}

// On paper, all is unfolded.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  folded.forEach((one) => { one.open = true; });
});
addEventListener("afterprint", () => folded.forEach((one) => { one.open = false; }));

// Interactive figures take the place of the static ones; one that fails leaves the static one where it is.
async function enliven(data, number) {
  const figure = data.closest("figure"), place = figure.querySelector(".moving");
  place.id = `moving-${number}`;
  figure.classList.add("is-live");
  try {
    const item = JSON.parse(data.textContent);
    const views = await Bokeh.embed.embed_item(item, place.id);
    const view = views.get_by_id ? views.get_by_id(item.root_id) : views[0] ?? views;
    addControls(figure, place, (view && view.model) || Bokeh.index[item.root_id]?.model);
  } catch (error) {
    figure.classList.remove("is-live");
    console.warn("an interactive figure could not be drawn; the static one stays", error);
  }
}

// Zooming by buttons and keys, and a walk over the points that a screen reader hears and a keyboard leads.
function addControls(figure, place, plot) {
  if (!plot || !plot.x_range) return;
  const home = [plot.x_range, plot.y_range].map((range) => [range.start, range.end]);
  const set = (change) => [plot.x_range, plot.y_range].forEach((range, axis) => {
    [range.start, range.end] = change([range.start, range.end], axis);
  });
  const zoom = (factor) => set(([a, b]) => {
    const middle = (a + b) / 2, half = (b - a) / 2 * factor;
    return [middle - half, middle + half];
  });
  const reset = () => set((_, axis) => home[axis]);
  const points = [...plot.renderers].reverse().flatMap((renderer) => {
    const told = renderer.data_source?.data.told;
    return told && renderer.name !== "ring" ? Array.from(told, (_, row) => [renderer.data_source, row]) : [];
  });
  const status = document.createElement("div");
  status.className = "told";
  status.setAttribute("aria-live", "polite");
  let current = -1;
  const ring = plot.renderers.find((renderer) => renderer.name === "ring");
  const show = (source, row) => {
    current = points.findIndex(([one, place]) => one === source && place === row);
    const x = source.data.x[row], y = source.data.y[row];
    if (ring) ring.data_source.data = { x: [x], y: [y] };
    set(([a, b], axis) => {
      const value = axis ? y : x, half = (b - a) / 2;
      return value < a || value > b ? [value - half, value + half] : [a, b];
    });
    const words = document.createElement("span");
    words.textContent = source.data.told[row];
    status.replaceChildren(words);
    if (source.data.u) {
      const thumb = document.createElement("i");
      thumb.className = "thumb map-thumb";
      thumb.style.backgroundPosition = `${-source.data.u[row]}px ${-source.data.v[row]}px`;
      status.prepend(thumb);
    }
  };
  const walk = (step) => {
    if (points.length) show(...points[(current + step + points.length) % points.length]);
  };
  // A tap, where nothing can hover, selects.
  for (const source of new Set(points.map(([one]) => one))) {
    source.selected.properties.indices.change.connect(() => {
      if (source.selected.indices.length) show(source, source.selected.indices[0]);
    });
  }
  const buttons = document.createElement("div");
  buttons.className = "buttons";
  const actions = [["Zoom in", () => zoom(0.7)], ["Zoom out", () => zoom(1 / 0.7)], ["Show all", reset]];
  if (points.length) actions.push(["Previous point", () => walk(-1)], ["Next point", () => walk(1)]);
  for (const [name, act] of actions) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "small";
    button.textContent = name;
    button.addEventListener("click", act);
    buttons.append(button);
  }
  place.addEventListener("keydown", (event) => {
    const act = { "+": () => zoom(0.7), "-": () => zoom(1 / 0.7), 0: reset, ArrowRight: () => walk(1), ArrowLeft: () => walk(-1) }[event.key];
    if (act) { act(); event.preventDefault(); }
  });
  for (const item of figure.querySelectorAll(".key li[data-part]")) {
    const renderer = plot.renderers.find((one) => one.name === item.dataset.part);
    if (!renderer) continue;
    const label = document.createElement("label"), box = document.createElement("input");
    box.type = "checkbox";
    box.checked = true;
    box.addEventListener("change", () => { renderer.visible = box.checked; });
    label.append(box, ...item.childNodes);
    item.append(label);
  }
  place.before(buttons);
  place.after(status);
}

if (typeof Bokeh !== "undefined") {
  document.querySelectorAll("script.live").forEach(enliven);
}
