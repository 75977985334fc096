"use strict";
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const printing = matchMedia("print");
  const find = (selector, inside = document) => inside.querySelector(selector);
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const charts = JSON.parse(find("#hotloop-charts").textContent);
  const say = (text) => { find("#status").textContent = text; };

  /* Theme: the system's, until the reader chooses. */
  const remembered = () => { try { return localStorage.getItem("hotloop-theme"); } catch { return null; } };
  const remember = (theme) => { try { localStorage.setItem("hotloop-theme", theme); } catch { /* private mode */ } };
  const theme = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const toggle = find("#theme");
  const nameToggle = () => { toggle.textContent = theme() === "dark" ? "Light" : "Dark"; };
  if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();
  toggle.hidden = false;
  nameToggle();
  toggle.addEventListener("click", () => {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    remember(root.dataset.theme);
    nameToggle();
    draw();
    say(`${root.dataset.theme} theme`);
  });
  dark.addEventListener("change", () => { nameToggle(); draw(); });
  printing.addEventListener("change", () => draw());
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = all("details:not([open])");
    opened.forEach((part) => { part.open = true; });
  });
  addEventListener("afterprint", () => opened.forEach((part) => { part.open = false; }));

  /* Charts take their colours from the page. */
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const config = { displayModeBar: false, responsive: true, showTips: false };
  function dressed(layout) {
    const axis = (given) => ({ gridcolor: css("--line"), linecolor: css("--line"), zeroline: false, automargin: true, ...given });
    const dress = {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: css("--sans"), size: 12.5, color: css("--ink") },
      hoverlabel: { bgcolor: css("--surface"), bordercolor: css("--line"), font: { color: css("--ink"), family: css("--sans") }, align: "left" },
    };
    for (const key of Object.keys(layout)) if (/^[xy]axis/.test(key)) dress[key] = axis(layout[key]);
    return dress;
  }
  function draw() {
    if (charts.icicle) {
      const trace = { ...charts.icicle.data[0] };
      const level = find("#icicle").data?.[0]?.level;
      trace.marker = { ...trace.marker, line: { color: css("--surface"), width: 1 },
        colors: trace.marker.colors.map((colour) => colour || css("--sunken")) };
      trace.pathbar = { ...trace.pathbar, textfont: { color: css("--ink"), size: 12 } };
      trace.root = { color: css("--sunken") };
      if (level !== undefined) trace.level = level;
      Plotly.react("icicle", [trace], dressed(charts.icicle.layout), config);
    }
    if (charts["time-series"]) {
      const data = charts["time-series"].data.map((trace) => trace.accent ? { ...trace, line: { color: css("--accent"), width: 2 } } : trace);
      Plotly.react("time-series", data, dressed(charts["time-series"].layout), config);
    }
  }
  draw();

  /* The tree: by mouse on the chart, by keyboard with the list. */
  const zoom = find("#zoom");
  if (zoom && charts.icicle) {
    const to = (level) => {
      Plotly.restyle("icicle", { level: [level] });
      const option = all("option", zoom).find((choice) => choice.value === level);
      zoom.value = option ? level : "";
      find("#icicle").dataset.level = level;
      say(option ? `zoomed to ${option.textContent.trim()}` : "zoomed");
    };
    zoom.addEventListener("change", () => to(zoom.value));
    find("#whole").addEventListener("click", () => to("root"));
    find("#icicle").on("plotly_icicleclick", (event) => { to(event.nextLevel ?? "root"); return false; });
  }

  /* The table of regions: sorting and filtering. */
  const body = find("#regions tbody");
  const heads = all("#regions thead th");
  const worth = (row, column) => {
    const cell = row.children[column];
    const raw = cell.dataset.value;
    if (raw === undefined) return (find(".name", cell) ?? cell).textContent.trim().toLowerCase();
    return raw === "" ? null : Number(raw);
  };
  heads.forEach((head, column) => find("button", head)?.addEventListener("click", () => {
    const numeric = head.classList.contains("num");
    const before = head.getAttribute("aria-sort");
    const down = before === "none" ? numeric : before === "ascending";
    heads.forEach((other) => other.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].map((row) => [worth(row, column), row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      const order = numeric ? a - b : a < b ? -1 : a > b ? 1 : 0;
      return down ? -order : order;
    });
    body.append(...rows.map(([, row]) => row));
    say(`sorted by ${find("button", head).textContent.trim()}, ${down ? "descending" : "ascending"}`);
  }));
  const filter = find("#filter");
  const only = find("#only");
  function sift() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word)) || (only.value !== "" && row.dataset.category !== only.value);
      left += !row.hidden;
    }
    find("#shown").textContent = `${left} of ${body.rows.length} rows`;
  }
  if (filter) {
    filter.addEventListener("input", sift);
    only.addEventListener("change", sift);
    sift();
  }

  /* Commands are there to be copied. */
  all(".copy").forEach((box) => {
    const button = find("button", box);
    button.hidden = false;
    button.addEventListener("click", async () => {
      const code = find("code", box);
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        getSelection().selectAllChildren(code);
        document.execCommand("copy");
      }
      button.textContent = "Copied";
      say("copied");
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  });
})();
