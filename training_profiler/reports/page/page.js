"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const make = (tag, text, attributes) => {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    for (const name in attributes || {}) node.setAttribute(name, attributes[name]);
    return node;
  };
  // Colors that people with color blindness distinguish; in the order of the largest sections.
  const COLORS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#44bb99", "#999933",
    "#882255", "#77aadd", "#9a9a9a"];
  const color = (at) => COLORS[at % COLORS.length];
  const ms = (value) => (value === null || value === undefined ? "" : `${Number(value.toPrecision(4))} ms`);
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const WHOLE = [...Array(10).keys()].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power));
  const charts = new Map();  // by the elements that they are in

  function axes(xLabel, yLabel) {
    const common = { stroke: () => style("--text"), grid: { stroke: () => style("--grid"), width: 1 },
      ticks: { stroke: () => style("--grid"), width: 1 }, font: "12px system-ui" };
    const incrs = xLabel === "step" ? WHOLE : undefined;
    return [{ ...common, label: xLabel, labelSize: 22, incrs }, { ...common, label: yLabel, labelSize: 22, size: 62 }];
  }

  function draw(target, options, values) {
    charts.get(target)?.destroy();
    const chart = new uPlot({ width: Math.max(240, target.clientWidth), height: 240, ...options }, values, target);
    charts.set(target, chart);
    return chart;
  }

  // --- steps ---------------------------------------------------------------
  const steps = data.steps;
  let stepChart = null, sectionChart = null, chosen = null;
  const hidden = new Set(), isOn = (id) => byId(id).checked;

  function stepNumbers() {
    return steps.ms.map((_, at) => steps.first + at * steps.group + (steps.group - 1) / 2);
  }

  function outliers(numbers) {
    // Only single steps can be marked; in a group the longest stands in its own line.
    const marked = new Array(numbers.length).fill(null);
    for (const long of data.longest) {
      const at = Math.floor((long.step - steps.first) / steps.group);
      if (at >= 0 && at < marked.length) marked[at] = steps.group > 1 ? steps.max[at] : steps.ms[at];
    }
    return marked;
  }

  function syncZoom(chart, scale) {
    if (scale !== "x") return;
    const { min, max } = chart.scales.x;
    const last = steps.first + steps.count - 1;
    byId("shown").textContent = `steps ${Math.max(steps.first, Math.ceil(min))} to ${Math.min(last, Math.floor(max))}`;
    for (const other of [stepChart, sectionChart]) {
      if (other && other !== chart && (other.scales.x.min !== min || other.scales.x.max !== max)) {
        other.setScale("x", { min, max });
      }
    }
  }

  function clickable(chart) {
    let downAt = null;
    chart.over.addEventListener("mousedown", (event) => { downAt = event.clientX; });
    chart.over.addEventListener("mouseup", (event) => {
      if (downAt !== null && Math.abs(event.clientX - downAt) < 4) {
        choose(nearest(chart.posToVal(event.offsetX, "x")));
      }
      downAt = null;
    });
    chart.over.addEventListener("dblclick", () => zoom("all"));
  }

  // The longest step within a few pixels is what a person aims at.
  function nearest(x) {
    const span = (stepChart.scales.x.max - stepChart.scales.x.min) / Math.max(1, stepChart.over.clientWidth);
    let best = Math.round(x), longest = -1;
    for (const long of data.longest) {
      if (Math.abs(long.step - x) <= 6 * span && long.ms > longest) { best = long.step; longest = long.ms; }
    }
    return best;
  }

  // A few values that are many times as large would leave the others a flat line: the scale ends above the 99th percentile.
  function highest(chart, xs, values) {
    const { min, max } = chart.series[0]; // the scale itself is not yet set
    const shown = values.filter((_, at) => xs[at] <= max && !(xs[at + 1] < min)).sort((a, b) => a - b);
    const largest = shown[shown.length - 1], most = shown[Math.ceil(0.99 * (shown.length - 1))];
    return (isOn("whole") || largest <= 2 * most ? 1.05 * largest : 1.2 * most) || 1;
  }

  // Steps beyond the upper end have a mark there.
  function markBeyond(chart) {
    const { ctx, bbox } = chart, size = 6 * devicePixelRatio;
    const [from, to] = chart.series[0].idxs;
    const beyond = steps.ms.slice(from, to + 1).filter((time) => time > chart.scales.y.max).length;
    byId("cut").textContent = beyond ? `${beyond} longer ${beyond > 1 ? "steps are" : "step is"} beyond the upper end.` : "";
    ctx.fillStyle = color(1);
    for (const long of data.longest) {
      const x = chart.valToPos(long.step, "x", true);
      if (long.ms <= chart.scales.y.max || x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x - size, bbox.top + 1.5 * size);
      ctx.lineTo(x + size, bbox.top + 1.5 * size);
      ctx.fill();
    }
  }

  // A logarithmic axis has its labels at powers of ten if it begins at 1, 2 or 5 of one.
  function below(low) {
    const power = 10 ** Math.floor(Math.log10(low));
    return power * (low >= 5 * power ? 5 : low >= 2 * power ? 2 : 1);
  }

  const zoomHooks = { setScale: [syncZoom], ready: [clickable] };

  function drawSteps() {
    const target = byId("step-chart"), numbers = stepNumbers();
    const isLog = isOn("log");
    const series = [{ label: "step", value: (_, v) => (v === null ? "" : String(Math.round(v))) },
      { label: steps.group > 1 ? `mean of ${steps.group} steps` : "step time", stroke: color(0), width: 1.2,
        value: (_, v) => ms(v), points: { show: numbers.length < 200, size: 4 } }];
    const values = [numbers, steps.ms];
    if (steps.max) {
      series.push({ label: `longest of ${steps.group}`, stroke: color(3), width: 0.8, value: (_, v) => ms(v) });
      values.push(steps.max);
    }
    series.push({ label: "longest steps", stroke: color(1), width: 0, paths: () => null, value: (_, v) => ms(v),
      points: { show: true, size: 8, fill: color(1) } });
    values.push(outliers(numbers));
    if (steps.median) {
      series.push({ label: "median", stroke: color(2), width: 1, dash: [6, 4], value: (_, v) => ms(v),
        points: { show: false } });
      values.push(numbers.map(() => steps.median));
    }
    stepChart = draw(target, { series, axes: axes("step", isLog ? "ms (logarithmic)" : "ms"), hooks: { ...zoomHooks, draw: [markBeyond] },
      scales: { x: { time: false }, y: { distr: isLog ? 3 : 1, range: (chart, low, high) => (isLog ? [below(low), 1.25 * high] : [0, highest(chart, numbers, steps.max || steps.ms)]) } },
      cursor: { drag: { x: true, y: false } } }, values);
    target.setAttribute("aria-label",
      `Step time over ${steps.count} steps, median ${ms(steps.median)}, longest ${ms(data.longest[0] ? data.longest[0].ms : null)}`
      + (data.longest[0] ? ` at step ${data.longest[0].step}` : ""));
  }

  function stacked() {
    const blocks = data.blocks, x = blocks.first.map((first) => first - 0.5);
    x.push(x[x.length - 1] + blocks.steps[blocks.steps.length - 1]);
    const whole = blocks.first.map((_, i) => blocks.ms.reduce((sum, column) => sum + column[i], 0));
    const sums = new Array(x.length).fill(0), layers = [];
    blocks.ms.forEach((column, at) => {
      if (!hidden.has(at)) column.forEach((value, i) => { sums[i] += isOn("shares") ? 100 * value / (whole[i] || 1) : value; });
      sums[x.length - 1] = sums[x.length - 2];
      layers.push(sums.slice());
    });
    return [x, ...layers];
  }

  function drawSections() {
    const stepped = uPlot.paths.stepped({ align: 1 }), values = stacked(), isShare = isOn("shares");
    const series = data.sections.map((label, at) => ({ label, stroke: color(at), fill: color(at), width: 0, paths: stepped,
      points: { show: false } }));
    const bands = data.sections.slice(1).map((_, at) => ({ series: [at + 2, at + 1], fill: color(at + 1) }));
    sectionChart = draw(byId("section-chart"), { series: [{}, ...series], bands, hooks: zoomHooks, legend: { show: false },
      axes: axes("step", isShare ? "% of the step" : "ms a step"), cursor: { drag: { x: true, y: false } },
      scales: { x: { time: false }, y: { range: (chart) =>
        [0, isShare ? 100 : highest(chart, values[0], chart.data[chart.data.length - 1])] } } }, values);
  }

  function drawLegend() {
    data.sections.forEach((name, at) => {
      const button = make("button", name, { type: "button", "aria-pressed": "true" });
      const swatch = make("span", undefined, { class: "swatch" });
      swatch.style.background = color(at);
      button.prepend(swatch);
      button.addEventListener("click", () => {
        hidden.has(at) ? hidden.delete(at) : hidden.add(at);
        button.setAttribute("aria-pressed", String(!hidden.has(at)));
        redraw();
      });
      byId("legend").append(button);
    });
  }

  function redraw() {
    const { min, max } = stepChart.scales.x;
    drawSteps();
    if (data.sections.length) drawSections();
    stepChart.setScale("x", { min, max });
  }

  function bars(target, values) {
    const largest = Math.max(...values, 1e-9), whole = values.reduce((sum, value) => sum + value, 0);
    values.map((value, at) => [value, at]).filter(([value]) => value > 0).sort((a, b) => b[0] - a[0]).forEach(([value, at]) => {
      const row = make("div", undefined, { class: "bar" }), bar = make("i");
      bar.style.width = `${(100 * value) / largest}%`;
      bar.style.background = color(at);
      const room = make("span");
      room.append(bar);
      row.append(make("span", data.sections[at]), room, make("span", `${ms(value)}  ${((100 * value) / whole).toFixed(1)}%`));
      target.append(row);
    });
  }

  function choose(number) {
    const last = steps.first + steps.count - 1;
    if (!Number.isFinite(number)) return;
    chosen = Math.min(last, Math.max(steps.first, number));
    const panel = byId("step");
    panel.replaceChildren();
    const at = Math.floor((chosen - steps.first) / steps.group);
    const long = data.longest.find((each) => each.step === chosen);
    const time = long ? long.ms : steps.ms[at];
    const notes = [];
    if (chosen <= steps.warmup) notes.push("warm-up");
    if (steps.slowed.includes(chosen)) notes.push("slowed by a capture");
    if (steps.median && time) notes.push(`${(time / steps.median).toFixed(2)} times the median`);
    const isGroup = steps.group > 1 && !long;
    panel.append(make("h4", `${isGroup ? `Steps around ${chosen}, mean` : `Step ${chosen}`}: ${ms(time)}`
      + (notes.length ? ` (${notes.join(", ")})` : "")));
    let values, first, count;
    if (long) {
      [values, first, count] = [long.sections, long.first, long.of];
    } else {
      let block = 0;
      while (block + 1 < data.blocks.first.length && data.blocks.first[block + 1] <= chosen) block += 1;
      [values, first, count] = [data.blocks.ms.map((column) => column[block]), data.blocks.first[block], data.blocks.steps[block]];
    }
    if (count > 1) panel.append(make("p", `Sections are known for steps ${first} to ${first + count - 1} together; these are their means.`, { class: "note" }));
    bars(panel, values);
    if (recorded.steps.length && showRecorded(chosen)) {
      panel.append(make("a", "This step span by span", { href: "#recorded" }));
    }
    byId("goto").value = String(chosen);
    stepChart.setCursor({ left: stepChart.valToPos(chosen, "x"), top: 20 });
  }

  function zoom(kind) {
    const whole = [steps.first - 0.5, steps.first + steps.count - 0.5];
    let { min, max } = stepChart.scales.x;
    if (kind === "all") [min, max] = whole;
    else {
      const middle = chosen !== null && chosen >= min && chosen <= max ? chosen : (min + max) / 2;
      const half = ((max - min) / 2) * (kind === "in" ? 0.5 : 2);
      [min, max] = [Math.max(whole[0], middle - half), Math.min(whole[1], middle + half)];
    }
    stepChart.setScale("x", { min, max });
  }

  function drawLongest() {
    const table = make("table"), head = make("tr"), body = make("tbody");
    table.append(make("caption", "Choose a step to see what it consists of"));
    for (const title of ["step", "ms", "times the median", "most above its mean"]) head.append(make("th", title, { scope: "col" }));
    const top = make("thead");
    top.append(head);
    for (const long of data.longest) {
      const row = make("tr"), button = make("button", String(long.step), { type: "button" }), cell = make("th", undefined, { scope: "row" });
      button.addEventListener("click", () => { choose(long.step); byId("step").scrollIntoView({ block: "nearest" }); });
      cell.append(button);
      const where = long.of > 1 ? ` in steps ${long.first} to ${long.first + long.of - 1}` : "";
      row.append(cell, make("td", String(long.ms)), make("td", steps.median ? (long.ms / steps.median).toFixed(2) : ""),
        make("td", long.excess ? `${data.sections[long.excess[0]]}: +${ms(long.excess[1])}${where}` : ""));
      body.append(row);
    }
    table.append(top, body);
    byId("longest").append(table);
  }

  function drawHistogram() {
    const spread = data.histogram, target = byId("histogram");
    if (!spread) { target.textContent = "All steps took the same time, or there was only one."; return; }
    const distr = spread.log ? 3 : 1, half = (spread.ms[1] - spread.ms[0]) / 2;
    draw(target, { series: [{ label: "ms", value: (_, v) => ms(v) },
      { label: "steps", stroke: color(0), fill: color(0), paths: uPlot.paths.bars({ size: [1, 100] }), value: (_, v) => v ?? "", points: { show: false } }],
    axes: axes(spread.log ? "ms (logarithmic)" : "ms", spread.log ? "steps (logarithmic)" : "steps"),
    scales: { x: { time: false, distr, range: (_, low, high) => (spread.log ? [below(0.9 * low), 1.25 * high] : [low - half, high + half]) },
      y: { distr, range: (_, low, high) => [spread.log ? 0.5 : 0, high * 1.05 || 1] } },
    cursor: { drag: { x: false, y: false } } }, [spread.ms, spread.counts.map((count) => count || null)]);
    if (spread.beyond) byId("beyond").textContent = `${spread.beyond} longer ${spread.beyond > 1 ? "steps are" : "step is"} beyond the right end.`;
  }

  // --- steps span by span ------------------------------------------------------
  const recorded = data.recorded;
  const at = (us) => ms(us / 1000);
  let view = [0, 1];

  function nameColor(name) {
    const known = data.sections.indexOf(recorded.names[name]);
    return known < 0 ? color(data.sections.length + name) : color(known);
  }

  const isLight = (hex) => [0.299, 0.587, 0.114].reduce((sum, weight, part) =>
    sum + weight * parseInt(hex.slice(1 + 2 * part, 3 + 2 * part), 16), 0) > 130;

  function showRecorded(number) {
    const index = recorded.steps.findIndex((each) => each.step === number);
    if (index < 0) return false;
    byId("recorded-step").value = String(index);
    drawLanes();
    return true;
  }

  function drawLanes() {
    const step = recorded.steps[Number(byId("recorded-step").value)], holder = byId("lanes");
    holder.replaceChildren();
    for (const lane of step.lanes) {
      const row = make("div", undefined, { class: "lane" }), room = make("div");
      row.append(make("span", lane.thread, { title: lane.thread }), room);
      room.style.height = `${1.4 * (1 + lane.spans.reduce((most, span) => Math.max(most, span[3]), 0))}rem`;
      for (const [name, begin, us, depth] of lane.spans) {
        const text = `${recorded.names[name]}: ${at(us)}, from ${at(begin)}`;
        const box = make("button", recorded.names[name], { type: "button", title: text, "aria-label": text });
        box.style.top = `${1.4 * depth}rem`;
        box.style.background = nameColor(name);
        box.style.color = isLight(nameColor(name)) ? "#1c2024" : "#fff";
        Object.assign(box.dataset, { begin, us });
        room.append(box);
      }
      holder.append(row);
    }
    byId("recorded-left-out").textContent =
      (step.left_out ? `${step.left_out} shorter spans of this step were not recorded. ` : "")
      + (recorded.left_out ? `${recorded.left_out} more slow steps are only in the timeline of training-profiler timeline.` : "");
    view = [0, Math.max(1, step.shown_us)];
    placeSpans();
  }

  function placeSpans() {
    const [from, to] = view, width = to - from;
    document.querySelectorAll("#lanes button").forEach((box) => {
      const begin = Math.max(from, Number(box.dataset.begin));
      const end = Math.min(to, Number(box.dataset.begin) + Number(box.dataset.us));
      box.hidden = end < begin || (end === begin && box.dataset.us !== "0");
      box.style.left = `${(100 * (begin - from)) / width}%`;
      box.style.width = `${(100 * (end - begin)) / width}%`;
    });
    byId("lanes-from").textContent = at(from);
    byId("lanes-to").textContent = at(to);
    const step = recorded.steps[Number(byId("recorded-step").value)];
    byId("recorded-shown").textContent = to > step.us
      ? `${at(width)}: the step, and what the device does of it later` : `${at(width)} of the step`;
  }

  function drawRecorded() {
    const choice = byId("recorded-step"), why = { first: "one of the first", slow: "slow", last: "one of the last" };
    recorded.steps.forEach((step, index) =>
      choice.append(make("option", `${step.step}: ${ms(step.ms)}, ${why[step.why]}`, { value: String(index) })));
    const slow = recorded.steps.findIndex((step) => step.why === "slow");
    choice.value = String(Math.max(0, slow));
    choice.addEventListener("change", drawLanes);
    byId("recorded-whole").addEventListener("click", drawLanes);
    byId("lanes").addEventListener("click", (event) => {
      const box = event.target.closest("button");
      if (!box || box.dataset.us === "0") return;
      const begin = Number(box.dataset.begin), us = Number(box.dataset.us);
      view = [begin - 0.02 * us, begin + 1.02 * us];
      placeSpans();
    });
    drawLanes();
  }

  // --- machine and ranks -----------------------------------------------------
  function drawMachine() {
    const targets = data.machine.map((one) => {
      const holder = make("div");
      holder.append(make("h3", one.title));
      const target = make("div", undefined, { class: "chart", role: "img", "aria-label": `${one.title} over time` });
      holder.append(target);
      byId("machine-charts").append(holder);
      return target;
    });
    // Only now has each chart its place, and so its width.
    data.machine.forEach((one, number) => {
      draw(targets[number], { height: 180, series: [{ label: one.x || "s", value: (_, v) => (v === null ? "" : one.x ? `${v}` : `${v} s`) },
        ...one.names.map((name, at) => ({ label: name, stroke: color(at), width: 1.5,
          value: (_, v) => (v === null ? "" : `${Number(v.toPrecision(3))} ${one.unit}`), points: { show: one.s.length < 100, size: 4 } }))],
      axes: axes(one.x || "seconds since the begin", one.unit),
      scales: { x: { time: false }, y: { range: (_, low, high) => [0, high * 1.1 || 1] } } }, [one.s, ...one.values]);
    });
  }

  function drawRanks() {
    const holder = byId("rank-map"), map = data.ranks;
    const choice = make("select"), label = make("label", "Time of "), where = make("p", "", { class: "note", "aria-live": "polite" });
    map.metrics.forEach((name, at) => choice.append(make("option", name, { value: String(at) })));
    label.append(choice);
    const canvas = make("canvas", undefined, { role: "img", "aria-label": "Heat map: a row for each rank, steps from left to right; the table below has the means" });
    const rows = map.ranks.length, columns = map.ms[0][0].length, high = rows > 40 ? 6 : 14;
    canvas.width = columns * 8;
    canvas.height = rows * high;
    canvas.style.height = `${canvas.height}px`;
    const paint = () => {
      const values = map.ms[Number(choice.value)], context = canvas.getContext("2d");
      const known = values.flat().filter((value) => value !== null).sort((a, b) => a - b);
      const low = known[0], top = known[Math.floor(0.99 * (known.length - 1))];
      values.forEach((row, y) => row.forEach((value, x) => {
        const share = value === null ? 0 : Math.min(1, (value - low) / (top - low || 1));
        context.fillStyle = value === null ? "#8884" : `rgb(${21 + 224 * share} ${48 + 149 * share} ${107 - 41 * share})`;
        context.fillRect(x * 8, y * high, 8, high);
      }));
      where.textContent = `From ${ms(low)} (dark blue) to ${ms(top)} (yellow) a step; a column is ${map.width} ${map.width === 1 ? "step" : "steps"}.`
        + (map.left_out ? ` ${map.left_out} more ranks are only in the table.` : "");
    };
    canvas.addEventListener("mousemove", (event) => {
      const x = Math.floor((event.offsetX / canvas.clientWidth) * columns), y = Math.floor((event.offsetY / canvas.clientHeight) * rows);
      const row = map.ms[Number(choice.value)][y];
      if (row && x >= 0 && x < columns) canvas.title = `${map.ranks[y]}, steps from ${x * map.width + 1}: ${ms(row[x]) || "no data"}`;
    });
    choice.addEventListener("change", paint);
    holder.append(label, canvas, where);
    paint();
  }

  // --- two runs ---------------------------------------------------------------------
  function drawCompared(pair) {
    const numbers = pair.before.map((_, at) => 1 + at * pair.group + (pair.group - 1) / 2);
    const known = [...pair.before, ...pair.after].filter((value) => value !== null).sort((a, b) => a - b);
    const at = (share) => known[Math.floor(share * (known.length - 1))];
    const isLog = at(0.99) > 8 * at(0.25), most = isLog ? Infinity : 3 * at(0.99);
    const series = ["before", "after"].map((label, at) =>
      ({ label, stroke: color(at), width: 1.2, value: (_, v) => ms(v), points: { show: numbers.length < 200, size: 4 } }));
    draw(byId(`${pair.id}-chart`), { series: [{ label: "step", value: (_, v) => (v === null ? "" : String(Math.round(v))) }, ...series],
      axes: axes("step", isLog ? "ms (logarithmic)" : "ms"), cursor: { drag: { x: true, y: false } },
      scales: { x: { time: false }, y: { distr: isLog ? 3 : 1,
        range: (_, low, high) => (isLog ? [below(low), 1.25 * high] : [0, Math.min(high * 1.05, most) || 1]) } } },
    [numbers, pair.before, pair.after]);
    const beyond = known.filter((value) => value > most).length;
    byId(`${pair.id}-note`).textContent = "Steps that are not compared are left out. Drag to zoom, double-click to see everything."
      + (pair.group > 1 ? ` Each point is the mean of ${pair.group} steps.` : "")
      + (beyond ? ` ${beyond} longer ${beyond > 1 ? "points are" : "point is"} beyond the upper end.` : "");
  }

  // --- flame view ---------------------------------------------------------------
  function flame() {
    const roots = document.querySelectorAll(".flame");
    if (!roots.length) return;
    document.querySelectorAll(".box").forEach((box) => {
      const button = box.firstElementChild, name = button.textContent;
      let hash = 0;
      for (let at = 0; at < name.length; at += 1) hash = (hash * 31 + name.charCodeAt(at)) % 997;
      button.style.background = `hsl(${20 + (hash % 45)} ${65 + (hash % 20)}% ${68 + (hash % 12)}%)`;
    });
    const all = (root) => root.querySelectorAll("[hidden]").forEach((node) => { node.hidden = false; });
    roots.forEach((root) => root.addEventListener("click", (event) => {
      const box = event.target.closest(".box");
      if (!box) return;
      all(root);
      for (let node = box; node !== root; node = node.parentElement) {
        if (!node.classList.contains("box")) continue;
        for (const other of node.parentElement.children) if (other !== node) other.hidden = true;
      }
    }));
    byId("flame-all").addEventListener("click", () => roots.forEach(all));
  }

  // --- tables ----------------------------------------------------------------------
  function sortable() {
    document.querySelectorAll("thead button").forEach((button) => button.addEventListener("click", () => {
      const head = button.parentElement, at = head.cellIndex, body = head.closest("table").tBodies[0];
      const isDown = head.getAttribute("aria-sort") !== "descending";
      head.parentElement.querySelectorAll("th").forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", isDown ? "descending" : "ascending");
      const key = (row) => {
        const cell = row.cells[at];
        return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
      };
      const rows = [...body.rows].sort((one, other) => {
        const [a, b] = [key(one), key(other)];
        if (a === "" || b === "") return (a === "") - (b === "");
        const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
        return isDown ? -order : order;
      });
      body.append(...rows);
    }));
  }

  function search() {
    const words = byId("search").value.trim().toLowerCase();
    let found = 0;
    document.querySelectorAll("tbody tr").forEach((row) => {
      row.hidden = words !== "" && !row.textContent.toLowerCase().includes(words);
      found += words !== "" && !row.hidden;
    });
    document.querySelectorAll(".box").forEach((box) => {
      const isHit = words !== "" && box.firstElementChild.textContent.toLowerCase().includes(words);
      box.classList.toggle("hit", isHit);
      found += isHit;
    });
    document.querySelectorAll("#lanes button").forEach((box) => {
      const isHit = words !== "" && box.textContent.toLowerCase().includes(words);
      box.classList.toggle("hit", isHit);
      found += isHit;
    });
    byId("found").textContent = words === "" ? "" : `${found} found`;
  }

  // --- the rest ------------------------------------------------------------------------
  function theme() {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    charts.forEach((chart) => chart.redraw());
  }

  function keys(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -100, PageDown: 100 }[event.key];
    const kind = { "+": "in", "=": "in", "-": "out", 0: "all" }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey || (!move && !kind)) return;
    event.preventDefault();
    if (move) choose(chosen === null ? steps.first : chosen + move * steps.group);
    else zoom(kind);
  }

  if (steps && steps.count && byId("step-chart")) {
    for (const id of ["log", "shares"]) byId(id).checked = steps.uneven;
    drawSteps();
    if (data.sections.length) drawSections();
    drawLegend();
    drawLongest();
    drawHistogram();
    // Warm-up steps would leave the others a flat line; "Everything" shows them.
    const from = steps.warmup < steps.count - 1 ? steps.warmup : 0;
    stepChart.setScale("x", { min: steps.first + from - 0.5, max: steps.first + steps.count - 0.5 });
    byId("step-chart").addEventListener("keydown", keys);
    document.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => zoom(button.dataset.zoom)));
    byId("goto").addEventListener("change", (event) => choose(Number(event.target.value)));
    byId("goto").max = String(steps.first + steps.count - 1);
    for (const id of ["whole", "log", "shares"]) byId(id).addEventListener("change", redraw);
  }
  if (recorded && recorded.steps.length && byId("lanes")) drawRecorded();
  if (data.machine && byId("machine-charts")) drawMachine();
  if (data.ranks && byId("rank-map")) drawRanks();
  if (data.compared) data.compared.forEach(drawCompared);
  flame();
  sortable();
  byId("search").addEventListener("input", search);
  byId("theme").addEventListener("click", theme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.redraw()));
  const fit = (most) => charts.forEach((chart, target) =>
    chart.setSize({ width: Math.min(most, Math.max(240, target.clientWidth)), height: chart.height }));
  let screen;
  addEventListener("beforeprint", () => {
    screen = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light"; // as paper is
    document.querySelectorAll("details").forEach((each) => { each.open = true; });
    fit(640); // A page of paper has less room than the window, and only the window is known here.
  });
  addEventListener("afterprint", () => {
    if (screen) document.documentElement.dataset.theme = screen;
    else delete document.documentElement.dataset.theme;
    fit(Infinity);
  });
  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => fit(Infinity), 100);
  });
  document.documentElement.dataset.drawn = String(charts.size);
})();
