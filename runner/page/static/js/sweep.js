// Mark the same trials in all pictures and in the table: by a hover, or by a range of an axis.
"use strict";
(() => {
  let seen = new WeakMap();
  // The text and the points of each trial of a picture, in the order of the leaderboard.
  const rowsOf = (svg) => {
    if (!seen.has(svg)) {
      const rows = [];
      for (const path of svg.querySelectorAll("path[data-from]")) {
        path.getAttribute("d").split("M").slice(1).forEach((text, n) => {
          rows[+path.dataset.from + n] = { text: "M" + text, at: text.match(/-?\d+/g).map(Number) };
        });
      }
      seen.set(svg, rows);
    }
    return seen.get(svg);
  };
  const all = (what) => document.querySelectorAll(`#trials ${what}`);
  const pictures = () => [...all("svg.trials")].filter((svg) => svg.querySelector(".hot"));
  let hot = -1, asked = 0;
  const mark = (row) => {
    if (row === hot) return;
    hot = row;
    for (const svg of pictures()) svg.querySelector(".hot").setAttribute("d", rowsOf(svg)[row]?.text ?? "");
    for (const each of all("[data-row]")) each.classList.toggle("on", +each.dataset.row === row);
    clearTimeout(asked);
    if (row >= 0) asked = setTimeout(describe, 60, row);
  };
  const describe = async (row) => {
    const { here, names } = document.getElementById("trials").dataset;
    const answer = await fetch(`${here}/trials/${encodeURIComponent(names.split(" ")[row])}${location.search}`);
    const found = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("trial-facts");
    if (found && row === hot) document.getElementById("readout").replaceChildren(...found.childNodes);
  };
  const pointIn = (element, event) => {
    const at = element.getScreenCTM().inverse();
    return new DOMPoint(event.clientX, event.clientY).matrixTransform(at);
  };
  const nearest = (svg, event) => {
    const lines = svg.querySelector(".lines"), point = pointIn(lines ?? svg.querySelector(".dots"), event);
    const n = Math.floor(point.x), part = point.x - n;
    let best = -1, least = lines ? 6 : 150;
    rowsOf(svg).forEach(({ at }, row) => {
      const far = lines
        ? Math.abs((at[2 * n + 1] ?? 1e9) * (1 - part) + (at[2 * n + 3] ?? at[2 * n + 1]) * part - point.y)
        : (at[0] - point.x) ** 2 + (at[1] - point.y) ** 2;
      if (far < least) [best, least] = [row, far];
    });
    return best;
  };
  // While a range is drawn: mark the trials in it and in the ranges of the other axes.
  const preview = (svg) => {
    const ranges = [...svg.querySelectorAll(".brush")].map((rect) => {
      const axis = [...svg.querySelectorAll(".axis")].indexOf(rect.parentNode);
      const low = (rect.y.baseVal.value - 40) / 2;
      return [2 * axis + 1, low - 0.5, low + rect.height.baseVal.value / 2 + 0.5];
    });
    const chosen = new Set();
    rowsOf(svg).forEach(({ at }, row) => {
      if (ranges.every(([n, low, high]) => at[n] >= low && at[n] <= high)) chosen.add(row);
    });
    for (const each of pictures()) {
      each.classList.add("brushed");
      each.querySelector(".sel").setAttribute("d", [...chosen].map((row) => rowsOf(each)[row].text).join(""));
    }
    for (const each of all("[data-row]")) each.classList.toggle("off", !chosen.has(+each.dataset.row));
    document.getElementById("readout").textContent = `${chosen.size} of ${rowsOf(svg).length} trials marked.`;
  };
  const valueAt = ({ low, high, log }, share) => {
    const [a, b] = log === undefined ? [+low, +high] : [Math.log(low), Math.log(high)];
    const value = a + (b - a) * Math.min(Math.max(share, 0), 1);
    return +(log === undefined ? value : Math.exp(value)).toPrecision(4);
  };
  const choose = (axis, top, bottom) => {
    const form = document.getElementById("sweep-form"), { name, choices } = axis.dataset;
    const field = form.elements.namedItem(name ? `b.${name}` : "b");
    const [low, high] = [1 - (bottom - 40) / 240, 1 - (top - 40) / 240], none = bottom - top < 3;
    if (!field) return;
    if (choices === undefined) field.value = none ? "" : `${valueAt(axis.dataset, low)}..${valueAt(axis.dataset, high)}`;
    else [...field.options].forEach((option, n) => {
      const share = n / Math.max(field.options.length - 1, 1);
      option.selected = !none && share >= low && share <= high;
    });
    form.requestSubmit();
  };
  // A curve is thin, so what is near the pointer counts, too.
  const curveAt = (x, y) => document.elementFromPoint(x, y)?.closest(".curves [data-row]");
  const rowAt = ({ target, clientX, clientY }) => target.closest?.("#trials [data-row]") ??
    (target.closest?.("svg.trials") && [-3, 3, -6, 6].map((by) => curveAt(clientX, clientY + by)).find(Boolean));
  let drag = null;
  document.addEventListener("pointerdown", (event) => {
    const svg = event.target.closest?.("svg.parallel");
    if (!svg || event.button) return;
    const point = pointIn(svg, event);
    const axis = [...svg.querySelectorAll(".axis")].find((each) => Math.abs(each.dataset.x - point.x) < 16);
    if (!axis) return;
    event.preventDefault();
    axis.querySelector(".brush")?.remove();
    const rect = document.createElementNS(svg.namespaceURI, "rect");
    rect.setAttribute("class", "brush");
    drag = { svg, axis, rect, from: point.y };
    axis.append(rect);
  });
  document.addEventListener("pointermove", (event) => {
    if (drag) {
      const { svg, axis, rect, from } = drag, y = Math.min(Math.max(pointIn(svg, event).y, 40), 280);
      Object.assign(drag, { top: Math.min(from, y), bottom: Math.max(from, y) });
      const sizes = { x: axis.dataset.x - 10, width: 20, y: drag.top, height: drag.bottom - drag.top };
      for (const [name, value] of Object.entries(sizes)) rect.setAttribute(name, value);
      preview(svg);
      return;
    }
    const target = rowAt(event), svg = event.target.closest?.("#trials svg.trials");
    if (target) mark(+target.dataset.row);
    else if (svg?.querySelector(".hot")) mark(nearest(svg, event));
  });
  document.addEventListener("pointerup", () => {
    if (drag) choose(drag.axis, drag.top ?? drag.from, drag.bottom ?? drag.from);
    drag = null;
  });
  document.addEventListener("pointercancel", () => {
    drag?.rect.remove();
    drag = null;
  });
  document.addEventListener("focusin", (event) => {
    const row = event.target.closest?.("tr[data-row]");
    if (row) mark(+row.dataset.row);
  });
  document.addEventListener("htmx:after:swap", () => { seen = new WeakMap(); hot = -1; });
})();
