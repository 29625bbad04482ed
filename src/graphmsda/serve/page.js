"use strict";

const MOST_CARDS = 200; // more pictures on one page help nobody
const AT_A_TIME = 8; // images in a request: results appear as they come
const byId = (id) => document.getElementById(id);
const percent = (share) => (share > 0.9995 ? "100 %" : share < 0.001 ? "< 0.1 %" : `${(100 * share).toFixed(1)} %`);

let model = null;
let counts = { done: 0, failed: 0, all: 0 };

/** Make an element with some text, or with other elements inside. */
function make(tag, className, ...inside) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...inside);
  return element;
}

/** List names with their probabilities as bars; the number stands beside each, so the bar is hidden from readers. */
function shares(rows, note = () => "") {
  const list = make("ul", "shares");
  rows.forEach((row, place) => {
    const fill = make("span");
    fill.style.width = `${100 * row.probability}%`;
    const track = make("span", "track", fill);
    track.setAttribute("aria-hidden", "true");
    const label = make("span", "label", row.name + note(row.name));
    label.title = row.name;
    list.append(make("li", place ? "" : "first", label, track, make("span", "value", percent(row.probability))));
  });
  return list;
}

function prototype(found) {
  const item = make("li");
  if (found.example) {
    const image = make("img");
    image.src = found.example;
    image.alt = `Training image nearest to this prototype, from ${found.domain}`;
    item.append(image);
  }
  item.append(make("strong", "", found.label), make("small", "", `in ${found.domain}`));
  item.append(make("small", "", `distance ${found.distance.toFixed(found.distance < 0.1 ? 3 : 2)}`));
  return item;
}

function startCard(file) {
  const image = make("img");
  image.src = URL.createObjectURL(file);
  image.alt = "";
  image.loading = "lazy";
  image.onerror = () => image.remove();
  const title = make("h2", "", "…");
  const words = make("div", "", title, make("div", "name", file.name || "pasted image"));
  const card = make("li", "card", make("div", "head", image, words));
  byId("results").append(card);
  return { card, title, words, image };
}

function fail(place, sentence) {
  place.title.textContent = "Not read";
  place.words.append(make("div", "error", sentence));
  counts.failed += 1;
}

function show(place, found) {
  place.title.textContent = found.label;
  place.words.append(make("div", "", `${percent(found.confidence)} confident`));
  const target = model ? model.domains[model.domains.length - 1] : null;
  const leaning = [...found.domains].sort((a, b) => b.probability - a.probability).slice(0, 6);
  place.card.append(make("h3", "", "Most probable classes"), shares(found.classes));
  const nearest = leaning[0].name === found.nearest_source ? "" : `, of the sources on ${found.nearest_source}`;
  place.card.append(make("h3", "", `Leans on ${leaning[0].name}${nearest}`));
  place.card.append(shares(leaning, (name) => (name === target ? " (target)" : "")));
  const near = make("ul", "prototypes");
  near.append(...found.prototypes.map(prototype));
  place.card.append(make("h3", "", "Nearest prototypes"), near);
  counts.done += 1;
}

/** Send some files; a busy server is asked again a few times. */
async function send(files, tries = 5) {
  const form = new FormData();
  for (const file of files) form.append("images", file, file.name || "pasted image");
  const answer = await fetch("predict?top=3", { method: "POST", body: form });
  if (answer.status === 503 && tries > 1) {
    await new Promise((resume) => setTimeout(resume, 1000 * Number(answer.headers.get("Retry-After") || 1)));
    return send(files, tries - 1);
  }
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error);
  return content.predictions;
}

async function ask(group) {
  try {
    const found = await send(group.map((entry) => entry.file));
    found.forEach((one, place) => (one.error ? fail(group[place], one.error) : show(group[place], one)));
  } catch (error) {
    if (group.length > 1) {
      for (const entry of group) await ask([entry]); // one bad image is no reason to refuse the others
      return;
    }
    fail(group[0], error instanceof TypeError ? "The server cannot be reached." : error.message);
  }
  tell();
}

function tell() {
  const { done, failed, all } = counts;
  const busy = done + failed < all;
  const bad = failed ? `, ${failed} could not be read` : "";
  byId("status").textContent = busy ? `${done + failed} of ${all} …` : all ? `${done} classified${bad}` : "";
  byId("results").setAttribute("aria-busy", String(busy));
  byId("clear").hidden = !all;
}

/** Split entries into requests that the server's limits allow. */
function groups(entries) {
  const bytes = 0.9e6 * (model ? model.limits.most_megabytes : 16);
  const most = Math.min(AT_A_TIME, model ? model.limits.most_images : 1);
  const found = [];
  let room = 0;
  for (const entry of entries) {
    const last = found[found.length - 1];
    if (last && last.length < most && entry.file.size <= room) last.push(entry);
    else { found.push([entry]); room = bytes; }
    room -= entry.file.size;
  }
  return found;
}

async function take(list) {
  const room = Math.max(0, MOST_CARDS - counts.all);
  const files = [...list].slice(0, room);
  if (!files.length) {
    if (list.length) byId("status").textContent = `${MOST_CARDS} images are shown; clear the results first`;
    return;
  }
  counts.all += files.length;
  const own = counts;
  const entries = files.map((file) => ({ file, ...startCard(file) }));
  tell();
  for (const group of groups(entries)) {
    if (own !== counts) return; // cleared meanwhile
    await ask(group);
  }
}

byId("files").addEventListener("change", (event) => {
  take(event.target.files);
  event.target.value = ""; // so that the same file can be chosen again
});
byId("clear").addEventListener("click", () => {
  document.querySelectorAll(".head img").forEach((image) => URL.revokeObjectURL(image.src));
  byId("results").replaceChildren();
  counts = { done: 0, failed: 0, all: 0 };
  tell();
  byId("files").focus();
});
document.addEventListener("paste", (event) => take(event.clipboardData.files));
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("dragging");
});
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) document.body.classList.remove("dragging");
});
document.addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("dragging");
  take(event.dataTransfer.files);
});

fetch("model").then((answer) => answer.json()).then((found) => {
  model = found;
  const target = found.domains[found.domains.length - 1];
  byId("model").textContent = `Run ${found.run}: ${found.method} on ${found.backbone}, ${found.classes.length} classes, `
    + `adapted from ${found.domains.slice(0, -1).join(", ")} to ${target}.`;
  byId("how").textContent = `JPEG, PNG, WebP, BMP, TIFF or GIF, up to ${found.limits.most_megabytes} MB each.`;
}).catch(() => { byId("model").textContent = "The server cannot be reached."; });
