// Draws the charts of a fafed report from the JSON in #report-data.
// Every change (axis, scale, theme, width, hidden curves) redraws from the one state below.
// The event "renewed" says that the content and the JSON are new, as `fafed watch` makes them.
"use strict";
(() => {
  let data, boxes;
  const root = document.documentElement;
  const state = { axis: "rounds", scale: "linear", hidden: new Set() }; // labels
  const coarse = matchMedia("(pointer: coarse)").matches;
  const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";

  const token = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  // Plotly reads a little HTML in its texts; names are to be shown as they are written.
  const plain = (text) =>
    String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  function baseLayout(box, height) {
    const axis = {
      gridcolor: token("grid"),
      linecolor: token("grid"),
      ticks: "",
      tickfont: { size: 12, color: token("muted") },
      zeroline: false,
      automargin: true,
      fixedrange: coarse, // a finger on a chart scrolls the page
    };
    return {
      width: box.clientWidth,
      height,
      margin: { l: 48, r: 18, t: 10, b: 46 },
      paper_bgcolor: token("background"),
      plot_bgcolor: token("background"),
      font: { family: FONT, size: 12, color: token("ink") },
      hoverlabel: {
        bgcolor: token("panel"),
        bordercolor: token("grid"),
        font: { family: FONT, size: 12, color: token("ink") },
        namelength: -1,
      },
      dragmode: coarse ? false : "zoom",
      showlegend: false,
      xaxis: { ...axis },
      yaxis: { ...axis },
    };
  }

  const furthest = (chart) =>
    Math.max(...chart.series.map((series) => data.grids[series.grid][state.axis].at(-1)));

  function lineTraces(chart) {
    const bands = [], lines = [];
    const format = chart.share ? ".2%" : ".4~g";
    for (const series of chart.series) {
      const curve = data.curves[series.curve];
      if (state.hidden.has(curve.label)) continue;
      const colour = token(`hue-${curve.hue}`);
      const x = data.grids[series.grid][state.axis];
      let hover = `%{y:${format}}`;
      if (series.low) {
        hover += ` (%{customdata[0]:${format}} to %{customdata[1]:${format}})`;
        bands.push({
          type: "scatter",
          mode: "lines",
          x: x.concat([...x].reverse()),
          y: series.high.concat([...series.low].reverse()),
          fill: "toself",
          fillcolor: `${colour}2b`,
          line: { width: 0, color: colour },
          hoverinfo: "skip",
        });
      }
      lines.push({
        type: "scatter",
        mode: x.length > 25 ? "lines" : "lines+markers",
        name: plain(curve.label),
        x,
        y: series.mean,
        customdata: series.low ? series.low.map((low, i) => [low, series.high[i]]) : undefined,
        line: { color: colour, width: 2, dash: curve.dash },
        marker: { color: colour, size: x.length > 1 ? 4 : 9 },
        hovertemplate: `${hover}<extra>%{fullData.name}</extra>`,
      });
    }
    if (chart.target !== null) {
      bands.push({
        type: "scatter",
        mode: "lines",
        x: [0, furthest(chart)],
        y: [chart.target, chart.target],
        line: { color: token("muted"), width: 1, dash: "2px,3px" },
        hoverinfo: "skip",
      });
    }
    return [...bands, ...lines];
  }

  function drawLines(box, chart) {
    const layout = baseLayout(box, box.clientWidth < 420 ? 250 : 300);
    const axis = data.axes[state.axis];
    const end = furthest(chart);
    Object.assign(layout.xaxis, {
      title: { text: axis.title, standoff: 8, font: { size: 12, color: token("muted") } },
      range: [0, 1.01 * end],
      nticks: 7,
      dtick: state.axis === "rounds" && end < 7 ? 1 : undefined, // there is no half round
      tickformat: axis.unit === "B" || end >= 10000 ? "~s" : "~g", // never "500m s"
      ticksuffix: axis.unit === "B" ? "B" : axis.unit && " s",
      showgrid: false,
      showline: true,
    });
    const logarithmic = chart.logarithmic && state.scale === "log";
    Object.assign(layout.yaxis, {
      type: logarithmic ? "log" : "linear",
      tickformat: chart.share ? ".3~%" : "",
      nticks: 6,
      minorloglabels: "complete",
    });
    if (chart.share) Object.assign(layout.yaxis, { minallowed: 0, maxallowed: 1 });
    // At one round all curves have a point, so one box can list them; other costs differ.
    layout.hovermode = state.axis === "rounds" ? "x unified" : "closest";
    layout.xaxis.unifiedhovertitle = { text: "Round %{x:,d}" };
    layout.uirevision = `${state.axis} ${state.scale}`; // a zoom survives a change of theme only
    return [lineTraces(chart), layout];
  }

  function drawHeat(box, heat) {
    const clients = heat.clients.map((client) => `${client}`);
    const layout = baseLayout(box, Math.min(900, Math.max(280, 26 * heat.classes.length + 150)));
    const accent = token("hue-0");
    const room = (0.84 * box.clientWidth) / clients.length;
    const text = heat.classes.map((_, c) => heat.counts.map((row) => (row[c] ? `${row[c]}` : "")));
    const bar = { type: "bar", marker: { color: accent, opacity: 0.55 } };
    const traces = [
      {
        type: "heatmap",
        x: clients,
        y: heat.classes.map(plain),
        z: heat.classes.map((_, c) => heat.counts.map((row) => row[c])),
        text,
        texttemplate: room > 30 ? "%{text}" : "",
        textfont: { size: 10 },
        colorscale: [[0, token("background")], [1, accent]],
        zmin: 0,
        zmax: Math.max(...heat.counts.flat(), 1),
        showscale: false,
        xgap: room > 8 ? 1 : 0,
        ygap: 1,
        hovertemplate: "client %{x}<br>%{y}: %{z:,d} examples<extra></extra>",
      },
      {
        ...bar,
        x: clients,
        y: heat.by_client,
        yaxis: "y2",
        hovertemplate: "client %{x}: %{y:,d} examples in all<extra></extra>",
      },
      {
        ...bar,
        orientation: "h",
        x: heat.by_class,
        y: heat.classes.map(plain),
        texttemplate: box.clientWidth > 600 ? "%{x:.3~s}" : "",
        textfont: { size: 10, color: token("ink") },
        constraintext: "none",
        xaxis: "x2",
        hovertemplate: "%{y}: %{x:,d} examples in all<extra></extra>",
      },
    ];
    const muted = { size: 12, color: token("muted") };
    Object.assign(layout.xaxis, {
      type: "category",
      domain: [0, 0.86],
      showgrid: false,
      title: { text: "Client", standoff: 8, font: muted },
      nticks: Math.max(2, Math.floor(box.clientWidth / 36)),
      tickangle: 0,
    });
    Object.assign(layout.yaxis, {
      type: "category",
      domain: [0, 0.82],
      autorange: "reversed",
      showgrid: false,
    });
    layout.yaxis2 = { ...layout.yaxis, type: "linear", domain: [0.86, 1], autorange: true,
      nticks: 3, tickformat: "~s", showgrid: true };
    layout.xaxis2 = { ...layout.xaxis, type: "linear", domain: [0.88, 1], showticklabels: false, title: { text: "Total", standoff: 8, font: muted }, anchor: "y" };
    layout.xaxis.anchor = "y";
    layout.bargap = 0.2;
    layout.hovermode = "closest";
    return [traces, layout];
  }

  // Drawn with plain lines rather than the parcoords trace, which needs WebGL: these print
  // sharply and work on machines without it.
  function drawStudy(box, study) {
    const layout = baseLayout(box, 320);
    const last = study.axes.length - 1;
    const best = token("hue-1");
    const others = token("hue-0");
    const traces = study.lines.map((line, i) => ({
      type: "scatter",
      mode: "lines+markers",
      x: study.axes.map((_, k) => k),
      y: line.at,
      line: { color: i === study.lines.length - 1 ? best : others,
        width: i === study.lines.length - 1 ? 2.5 : 1.25 },
      marker: { size: 4 },
      opacity: i === study.lines.length - 1 ? 1 : 0.12 + 0.6 * line.rank ** 2,
      hovertemplate: `${line.text.map(plain).join("<br>").replace(/%\{/g, "% {")}<extra></extra>`,
    }));
    layout.shapes = study.axes.map((_, k) => ({
      type: "line", x0: k, x1: k, y0: 0, y1: 1, layer: "below",
      line: { color: token("muted"), width: 1 },
    }));
    layout.annotations = study.axes.flatMap((axis, k) =>
      axis.ticks.map((tick) => ({
        x: k, y: tick.at, text: plain(tick.text), showarrow: false,
        xanchor: "left", xshift: 4, yshift: 7,
        font: { size: 11, color: token("muted") }, bgcolor: token("background"), opacity: 0.85,
        borderpad: 0,
      })));
    Object.assign(layout.xaxis, {
      range: [-0.06, last + 0.06],
      tickvals: study.axes.map((_, k) => k),
      ticktext: study.axes.map((axis) => plain(axis.label)),
      tickfont: { size: 12, color: token("ink") },
      side: "bottom",
      showgrid: false,
    });
    Object.assign(layout.yaxis, { visible: false, range: [-0.06, 1.1] });
    layout.margin.l = 24;
    layout.margin.r = 52;
    layout.hovermode = "closest";
    return [traces, layout];
  }

  const DRAW = {
    chart: (box, i) => drawLines(box, data.charts[i]),
    heat: (box, i) => drawHeat(box, data.heat[i]),
    study: (box, i) => drawStudy(box, data.studies[i]),
  };

  function draw(box) {
    if (box.closest("details:not([open])")) return; // drawn when it opens
    const [traces, layout] = DRAW[box.dataset.kind](box, Number(box.dataset.index));
    box.drawnWidth = box.clientWidth;
    Plotly.react(box, traces, layout, {
      displayModeBar: false, // static versions lie beside the page; a double click unzooms
      doubleClick: "reset",
    });
  }
  const drawAll = () => boxes.forEach(draw);

  function begin(renewed) {
    data = JSON.parse(document.getElementById("report-data").textContent);
    boxes = [...document.querySelectorAll(".plot")];
    for (const input of document.querySelectorAll(".switch input")) {
      input.addEventListener("change", () => {
        state[input.name] = input.value;
        drawAll();
      });
      if (renewed) input.checked = state[input.name] === input.value;
      else if (input.checked) state[input.name] = input.value; // a reload may restore a choice
    }
    for (const chip of document.querySelectorAll(".legend button")) {
      const { label } = data.curves[Number(chip.dataset.curve)];
      chip.setAttribute("aria-pressed", String(!state.hidden.has(label)));
      chip.addEventListener("click", () => {
        const shown = state.hidden.delete(label);
        if (!shown) state.hidden.add(label);
        chip.setAttribute("aria-pressed", String(shown));
        drawAll();
      });
    }
    for (const details of document.querySelectorAll("details")) {
      details.addEventListener("toggle", () => details.querySelectorAll(".plot").forEach(draw));
    }
    watch.disconnect();
    boxes.forEach((box) => watch.observe(box));
    drawAll();
  }
  const watch = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.clientWidth !== target.drawnWidth) draw(target);
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

  // On paper: light, everything open, charts as wide as the sheet.
  let closed = [];
  addEventListener("beforeprint", () => {
    root.classList.add("printing");
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach((details) => { details.open = true; });
    drawAll();
  });
  addEventListener("afterprint", () => {
    root.classList.remove("printing");
    closed.forEach((details) => { details.open = false; });
    drawAll();
  });

  addEventListener("renewed", () => begin(true));
  begin(false);
})();
