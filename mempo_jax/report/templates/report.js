"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const byId = (id) => document.getElementById(id);

  // What stands in the page as inert text becomes elements when it is opened.
  function fill(details) {
    for (const place of all(":scope > [data-holds]", details)) {
      place.innerHTML = byId(place.dataset.holds).textContent;
      place.removeAttribute("data-holds");
      all("details", place).forEach(watch);
    }
  }
  function watch(details) {
    details.addEventListener("toggle", () => details.open && fill(details));
    if (details.open) fill(details);
  }
  all("details").forEach(watch);

  // An address that ends with the id of a group opens it, with /0 its first trajectory
  // too. #g3 and #t3-0 do the same by the number of the group on this page.
  function follow() {
    const hash = location.hash.slice(1);
    const byNumber = /^[gt](\d+)(?:-(\d+))?$/.exec(hash);
    const [key, member] = byNumber ? byNumber.slice(1) : hash.split("/");
    let open = byNumber ? all(".group")[key] : byId(key);
    if (!open || !open.matches(".group")) return;
    for (const inner of [undefined, member]) {
      if (inner !== undefined) open = all(".member", open)[inner];
      if (!open) return;
      open.open = true;
      fill(open);
      open.scrollIntoView();
    }
  }
  addEventListener("hashchange", follow);
  follow();

  for (const button of all("[data-go]"))
    button.addEventListener("click", () => byId(button.dataset.go).scrollIntoView());

  // Curves: the values at a step, by pointer or by the arrow keys.
  const LEFT = 42, RIGHT = 8, TOP = 8, BOTTOM = 20, WIDTH = 340, HEIGHT = 170;
  const short = (value) => {
    if (value < 0) return "−" + short(-value);
    if (value >= 1e9) return Number((value / 1e9).toPrecision(3)) + "G";
    if (value >= 1e6) return Number((value / 1e6).toPrecision(3)) + "M";
    if (value >= 1e4) return Number((value / 1e3).toPrecision(3)) + "k";
    return String(value >= 1e3 ? Math.round(value) : Number(value.toPrecision(3)));
  };
  function points(path) {
    const found = path.getAttribute("d").match(/[ML][^ML]+/g) || [];
    return found.map((pair) => pair.slice(1).split(" ").map(Number));
  }
  function curve(svg) {
    const [first, last, low, high] = svg.dataset.frame.split(",").map(Number);
    const cross = svg.querySelector(".cross");
    const lines = all("g path.pale", svg).map(points);
    const xs = [...new Set(lines.flat().map(([x]) => x))].sort((a, b) => a - b);
    const outputs = all("figcaption output", svg.closest("figure"));
    const at = svg.closest("figure").querySelector(".at");
    const ends = outputs.map((output) => output.textContent);
    let place = -1;
    function show(next) {
      if (!xs.length) return;
      place = Math.min(Math.max(next, 0), xs.length - 1);
      const x = xs[place];
      const step = first + ((x - LEFT) / (WIDTH - LEFT - RIGHT)) * (last - first);
      at.textContent = "step " + Math.round(step);
      for (const [name, value] of [["x1", x], ["x2", x], ["y1", TOP], ["y2", HEIGHT - BOTTOM]])
        cross.setAttribute(name, value);
      cross.style.visibility = "visible";
      lines.forEach((line, n) => {
        const point = line.find(([px]) => px === x);
        const share = point && (HEIGHT - BOTTOM - point[1]) / (HEIGHT - TOP - BOTTOM);
        outputs[n].textContent = point ? short(low + share * (high - low)) : "–";
      });
    }
    function leave() {
      place = -1;
      at.textContent = "";
      cross.style.visibility = "hidden";
      outputs.forEach((output, n) => { output.textContent = ends[n]; });
    }
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * WIDTH;
      const near = xs.reduce((best, each, n) =>
        Math.abs(each - x) < Math.abs(xs[best] - x) ? n : best, 0);
      show(near);
    });
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("blur", leave);
    svg.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      show(place < 0 ? (by > 0 ? 0 : xs.length - 1) : place + by);
    });
  }
  all("svg.curve").forEach(curve);

  for (const box of all("[data-shows]"))
    box.addEventListener("change", () => {
      const key = box.dataset.shows;
      if (!box.checked) return void all(`#chosen > [data-key=${key}]`).forEach((e) => e.remove());
      byId("chosen").insertAdjacentHTML("beforeend", byId(key).textContent);
      byId("chosen").lastElementChild.dataset.key = key;
      curve(byId("chosen").lastElementChild.querySelector("svg"));
    });

  // Colours of tokens, and the filter of groups.
  for (const radio of all("[name=colour]"))
    radio.addEventListener("change", () => { root.dataset.colour = radio.value; });

  const form = byId("filter");
  if (!form) return;
  const groups = all(".group");
  const words = new Map();
  function text(group, n) {
    if (!words.has(group)) {
      const keys = ["g" + n];
      for (let m = 0; m < Number(group.dataset.members); m++) keys.push(`t${n}-${m}`);
      const html = keys.map((key) => byId(key).textContent).join(" ");
      const plain = html.replace(/<[^>]*>/g, "").replace(/&(lt|gt|quot|#x27|amp);/g,
        (_, name) => ({ lt: "<", gt: ">", quot: '"', "#x27": "'", amp: "&" })[name]);
      words.set(group, (group.dataset.task + " " + plain).toLowerCase());
    }
    return words.get(group);
  }
  function filter() {
    const step = byId("step").value, outcome = byId("outcome").value;
    const find = byId("find").value.trim().toLowerCase();
    let left = 0;
    groups.forEach((group, n) => {
      const fits = (!step || group.dataset.step === step) &&
        (!outcome || group.dataset.outcomes.split(" ").includes(outcome)) &&
        (!find || text(group, n).includes(find));
      group.hidden = !fits;
      left += fits;
    });
    root.dataset.outcomeFilter = outcome;
    byId("none").hidden = left > 0;
    byId("count").textContent = `${left} of ${groups.length} groups`;
  }
  let waiting;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", filter);
  byId("find").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(filter, 200);
  });
  filter();
})();
