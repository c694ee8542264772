// A run under the pointer is marked in all plots and tables; long plots can be zoomed with uPlot.
"use strict";
(() => {
  const plots = new Map();
  let marked = null;
  const mark = (run) => {
    if (run === marked) return;
    marked = run;
    document.body.classList.toggle("marking", run !== null);
    for (const each of document.querySelectorAll(".on")) each.classList.remove("on");
    const same = run === null ? [] : document.querySelectorAll(`[data-run="${CSS.escape(run)}"]`);
    for (const each of same) each.classList.add("on");
    for (const plot of plots.values()) {
      const at = plot.series.findIndex((each) => each.label === run);
      plot.setSeries(at > 0 ? at : null, { focus: at > 0 }, false);
    }
  };
  const runOf = (event) => event.target.closest?.("[data-run]")?.dataset.run ?? null;
  document.addEventListener("pointerover", (event) => {
    if (!event.target.closest?.(".uplot")) mark(runOf(event));
  });
  document.addEventListener("focusin", (event) => mark(runOf(event)));

  const load = async (figure, part) => {
    const answer = await fetch(figure.dataset.plot + part);
    const metric = answer.ok && Object.values((await answer.json()).metrics)[0];
    return metric && { runs: Object.keys(metric.y), data: [metric.x, ...Object.values(metric.y)] };
  };
  const open = async (figure) => {
    plots.set(figure, { series: [], setSeries() {} });
    const found = await load(figure, "");
    const svg = figure.querySelector("svg.chart");
    if (!found || !svg) return plots.delete(figure);
    const style = getComputedStyle(document.body), box = svg.getBoundingClientRect();
    const query = new URL(figure.dataset.plot, location).searchParams;
    const stroke = (run) =>
      getComputedStyle(figure.querySelector(`path[data-run="${CSS.escape(run)}"]`) ?? svg).stroke;
    const said = figure.querySelector("output");
    const axis = { stroke: style.getPropertyValue("--quiet"), grid: { stroke: style.getPropertyValue("--line"), width: 1 } };
    const plot = new uPlot({
      width: box.width, height: box.height, legend: { show: false },
      scales: { x: { time: false }, y: { distr: query.get("log") ? 3 : 1 } },
      axes: [axis, { ...axis, size: 64 }],
      series: [{}, ...found.runs.map((run) => ({ label: run, stroke: stroke(run), width: 1.5, spanGaps: true, points: { show: false } }))],
      focus: { alpha: 0.13 },
      cursor: { sync: { key: "runs" }, focus: { prox: 24 }, drag: { x: true, y: false } },
      hooks: {
        setSeries: [(self, at) => { if (self.cursor.event) mark(at ? self.series[at].label : null); }],
        setCursor: [(self) => {
          const at = self.cursor.idx, series = self.series.findIndex((each) => each.label === marked);
          const value = at !== null && series > 0 ? self.data[series][at] : null;
          said.textContent = value === null ? "" : `${marked}: ${value} at ${self.data[0][at]}`;
        }],
        setSelect: [async (self) => {
          if (!self.select.width) return;
          const [from, to] = [0, self.select.width].map((by) => self.posToVal(self.select.left + by, "x"));
          const part = await load(figure, `&from=${from}&to=${to}`);
          if (part) self.setData(part.data, false);
        }],
      },
    }, found.data, figure);
    plot.over.addEventListener("dblclick", async () => plot.setData((await load(figure, "")).data));
    figure.classList.add("zoomed");
    figure.setAttribute("hx-morph-skip", "");
    plots.set(figure, plot);
  };
  const begin = (event) => {
    const figure = event.target.closest?.(".plot[data-plot]");
    if (figure && !plots.has(figure) && window.uPlot) open(figure);
  };
  document.addEventListener("pointerover", begin);
  document.addEventListener("focusin", begin);
})();
