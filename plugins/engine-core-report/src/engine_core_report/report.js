"use strict";
/* Draws the charts of the page from #data. What was chosen (axis, smoothing, zoom) stays when they are drawn anew. */
const report = (() => {
  const find = (id) => document.getElementById(id);
  const root = document.documentElement;
  const HEIGHT = 230;
  const FEW = 40; // so few values are marked by points
  const OF_A_LINE = 4; // what is drawn of each: the line, as it was logged, its lowest, its highest
  const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [14, 4], [4, 8]];
  const drawn = new Map(); // by a figure's name: the plot, how it looks, and where it was read last
  const zooms = new Map();
  let charts = JSON.parse(find("data").textContent).charts;
  let axis = "x";

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function shown(value) {
    if (value === null) return "not finite";
    const size = Math.abs(value);
    return size >= 1e6 || (size && size < 1e-3) ? value.toExponential(3) : String(+value.toPrecision(5));
  }

  /* A label of an axis, as short as can be. */
  function tick(value) {
    if (value === null) return "";
    const exact = +value.toPrecision(6);
    const size = Math.abs(exact);
    return size >= 1e5 || (size && size < 1e-3) ? exact.toExponential() : String(exact);
  }

  /* Round values between two costs. */
  function steps(_, axis, min, max) {
    const digits = max / min > 30 ? [1] : max / min > 5 ? [1, 2, 5] : [1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9];
    const found = [];
    for (let power = Math.floor(Math.log10(min)); 10 ** power <= max; power++) {
      found.push(...digits.map((digit) => digit * 10 ** power).filter((value) => value >= min && value <= max));
    }
    return found;
  }

  /* An axis of costs: they multiply. */
  const COSTS = {
    scale: { distr: 3, range: (_, min, max) => [min / 1.2, max * 1.2] },
    axis: {
      splits: steps,
      filter: (_, ticks) => ticks,
      values: (_, ticks) => ticks.map((value) => value.toLocaleString("en", { notation: "compact" })),
    },
  };

  /* Smooth exponentially, without a bias at the beginning; gaps stay gaps. */
  function smoothed(values, weight) {
    if (!weight) return values;
    let sum = 0;
    let norm = 0;
    return values.map((value) => {
      if (value === null) return value;
      sum = weight * sum + (1 - weight) * value;
      norm = weight * norm + (1 - weight);
      return sum / norm;
    });
  }

  /* Return one table of all lines; undefined is where a line has no point, null where it has a gap. */
  function table(lines, weight) {
    const tables = lines.map((line) => {
      const merged = line.low.length > 0;
      return [line[axis], smoothed(line.y, weight), line.y, merged ? line.low : line.y, merged ? line.high : line.y];
    });
    return uPlot.join(tables, tables.map(() => Array(OF_A_LINE + 1).fill(1)));
  }

  function looks(lines, weight) {
    const series = [{}];
    const bands = [];
    for (const line of lines) {
      const stroke = colour("--c" + line.colour);
      const few = line.y.length < FEW;
      const merged = line.low.length > 0;
      const beside = { width: 1, points: { show: false } };
      series.push(
        { label: line.name, stroke, width: 2, dash: DASHES[line.dash], points: { show: few, size: 5, fill: stroke } },
        { ...beside, stroke: stroke + "55", show: weight > 0 },
        { ...beside, show: merged },
        { ...beside, show: merged },
      );
      if (merged) bands.push({ series: [series.length - 1, series.length - 2], fill: stroke + "30" });
    }
    return { series, bands };
  }

  /* Dotted lines where a run was resumed. */
  function marks(plot, { chart }) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = colour("--soft");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([2 * devicePixelRatio, 4 * devicePixelRatio]);
    for (const at of chart.resumed[axis]) {
      const left = plot.valToPos(at, "x", true);
      if (left < bbox.left || left > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(left, bbox.top);
      ctx.lineTo(left, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  /* Say what the lines are at a point of the table. */
  function told(plot, { lines, units }, index) {
    const values = lines
      .map((line, number) => [line.name, plot.data[1 + OF_A_LINE * number][index]])
      .filter(([, value]) => value !== undefined)
      .map(([name, value]) => name + " " + shown(value));
    const at = plot.data[0][index];
    const cost = (unit) => at.toLocaleString("en", { maximumSignificantDigits: 5 }) + " " + unit;
    const place = units ? cost(units[axis]) : axis === "x" ? "step " + at : shown(at) + " seconds";
    return place + ": " + values.join(", ");
  }

  /* Let the arrow keys read the chart's values, one by one. */
  function listen(place, live, one) {
    const { plot } = one;
    place.onkeydown = (event) => {
      const last = plot.data[0].length - 1;
      const jump = event.shiftKey ? Math.max(1, Math.ceil(last / 20)) : 1;
      const at = one.at === null ? -1 : plot.valToIdx(one.at);
      const goals = { ArrowLeft: at < 0 ? last : at - jump, ArrowRight: at + jump, Home: 0, End: last };
      if (!(event.key in goals) || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      const index = Math.max(0, Math.min(last, goals[event.key]));
      one.at = plot.data[0][index]; // not the index, which is of another value when more have come
      plot.setCursor({ left: plot.valToPos(one.at, "x"), top: HEIGHT / 3 }, false);
      live.textContent = told(plot, one.chart, index);
    };
    place.onpointermove = () => {
      if (plot.cursor.idx != null) live.textContent = told(plot, one.chart, plot.cursor.idx);
    };
  }

  function draw(figure) {
    const { name } = figure.dataset;
    const chart = charts[figure.dataset.chart];
    const place = figure.querySelector(".plot");
    const weight = +(find("smooth")?.value ?? 0);
    const positive = chart.lines.every((line) => [...line.y, ...line.low].every((value) => value === null || value > 0));
    const logarithmic = find("log").checked && positive;
    const scheme = matchMedia("(prefers-color-scheme: dark)").matches + " " + matchMedia("print").matches;
    const lines = chart.lines.map((line) => [line.name, line.colour, line.dash, line.low.length > 0, line.y.length < FEW]);
    const look = JSON.stringify([axis, weight > 0, logarithmic, scheme, lines]);
    const data = table(chart.lines, weight);
    const before = drawn.get(name);
    if (before?.look === look && place.contains(before.plot.root)) {
      before.chart = chart;
      before.plot.setData(data, !zooms.has(name));
      if (zooms.has(name)) before.plot.setScale("x", zooms.get(name));
      return;
    }
    before?.plot.destroy();
    place.replaceChildren();
    const one = { chart, look, at: before?.at ?? null };
    const line = {
      stroke: colour("--soft"),
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { stroke: colour("--line"), width: 1 },
      font: "12px system-ui, sans-serif",
    };
    const options = {
      width: place.clientWidth,
      height: HEIGHT,
      ...looks(chart.lines, weight),
      scales: { x: { time: false, ...(chart.units && COSTS.scale) }, y: { distr: logarithmic ? 3 : 1 } },
      axes: [{ ...line, size: 32, ...(chart.units && COSTS.axis) }, { ...line, size: 62, values: (_, ticks) => ticks.map(tick) }],
      legend: { show: false },
      cursor: { sync: { key: "all", scales: ["x", null] }, points: { show: false } },
      hooks: {
        draw: [(plot) => marks(plot, one)],
        setSelect: [(plot) => zoomed(name, plot)],
      },
    };
    one.plot = new uPlot(options, data, place);
    if (zooms.has(name)) one.plot.setScale("x", zooms.get(name));
    listen(place, figure.querySelector(".live"), one);
    drawn.set(name, one);
  }

  /* Remember the range that was chosen; uPlot sets it after this. */
  function zoomed(name, plot) {
    if (!plot.select.width) return;
    const min = plot.posToVal(plot.select.left, "x");
    zooms.set(name, { min, max: plot.posToVal(plot.select.left + plot.select.width, "x") });
  }

  function drawAll() {
    const figures = document.querySelectorAll("figure[data-chart]");
    figures.forEach(draw);
    root.dataset.ready = String(figures.length);
  }

  function drawWhole() {
    zooms.clear();
    for (const one of drawn.values()) Object.assign(one, { look: "", at: null }); // in each range anew
    axis = find("axis").value;
    drawAll();
  }

  const resized = new ResizeObserver(() => {
    for (const { plot } of drawn.values()) {
      const width = plot.root.parentElement?.clientWidth;
      if (width && width !== plot.width) plot.setSize({ width, height: HEIGHT });
    }
  });

  /* Attach the controls, once they are there. */
  function control() {
    if (!find("charts")) return;
    axis = find("axis").value;
    find("axis").onchange = find("reset").onclick = drawWhole;
    find("log").onchange = drawAll;
    if (find("smooth")) find("smooth").oninput = drawAll;
    resized.observe(find("charts"));
  }

  /* Draw what has come since. */
  function update(newer) {
    charts = newer;
    control();
    drawAll();
  }

  /* Print what is folded, too. */
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const details of folded) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of folded) details.open = false;
  });

  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", drawAll);
  update(charts);
  return { update };
})();
