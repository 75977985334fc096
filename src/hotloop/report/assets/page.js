"use strict";
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
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
    say(`${root.dataset.theme} theme`);
  });
  dark.addEventListener("change", nameToggle);

  /* The navigation: marks the section in view, and opens a closed one before going there. */
  const links = new Map(all("nav.contents a").map((link) => [link.hash.slice(1), link]));
  const inView = new Set();
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) inView[entry.isIntersecting ? "add" : "delete"](entry.target.id);
    const first = [...links.keys()].find((key) => inView.has(key));
    links.forEach((link, key) => key === first ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current"));
  }, { rootMargin: "-64px 0px -60% 0px" });
  links.forEach((link, key) => { const section = document.getElementById(key); if (section) watcher.observe(section); });
  const openTarget = () => {
    const part = find(":scope > details", document.getElementById(location.hash.slice(1)) ?? document.createElement("i"));
    if (part) part.open = true;
  };
  addEventListener("hashchange", openTarget);
  links.forEach((link) => link.addEventListener("click", () => setTimeout(openTarget)));
  openTarget();

  /* Values at the pointer. */
  const tip = find("#tip");
  const showTip = (text, event) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = event.clientX + 14 + box.width > innerWidth ? event.clientX - 14 - box.width : event.clientX + 14;
    const top = event.clientY + 16 + box.height > innerHeight ? event.clientY - 12 - box.height : event.clientY + 16;
    tip.style.left = `${Math.max(left, 4)}px`;
    tip.style.top = `${Math.max(top, 4)}px`;
  };
  document.addEventListener("pointermove", (event) => {
    const owner = event.target.closest?.("[data-tip]");
    if (owner) showTip(owner.dataset.tip, event);
    else if (!event.target.closest?.(".plots")) tip.hidden = true;
  });
  document.addEventListener("pointerleave", () => { tip.hidden = true; });
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

  /* The run over time. */
  const series = charts["time-series"];
  const plots = find("#time-series .plots");
  if (series && plots) {
    const units = {
      rate: (value) => value.toLocaleString("en-US", { maximumFractionDigits: value < 100 ? 1 : 0 }),
      share: (value) => `${(100 * value).toFixed(1)} %`,
      memory: (value) => `${(value / 2 ** 30).toFixed(2)} GiB`,
    };
    const times = series.time_s;
    const cursor = find(".cursor", plots);
    plots.addEventListener("pointermove", (event) => {
      const box = plots.getBoundingClientRect();
      const at = (event.clientX - box.left) / box.width * times[times.length - 1];
      const number = Math.max(times.findIndex((time) => time >= at), 0);
      cursor.hidden = false;
      cursor.style.left = `${100 * times[number] / times[times.length - 1]}%`;
      const told = series.rows.filter((row) => row.values[number] !== null && (row.kind !== "share" || row.values[number] >= 0.001))
        .map((row) => `${row.name} ${units[row.kind](row.values[number])}`);
      showTip([`at ${times[number].toFixed(1)} s`, ...told].join("\n"), event);
    });
    plots.addEventListener("pointerleave", () => { cursor.hidden = true; tip.hidden = true; });
  }

  /* The tree: by mouse on the chart, by keyboard with the list. */
  const zoom = find("#zoom");
  const slices = find("#icicle .slices");
  if (zoom && slices) {
    const shapes = all(".slice", slices).map((slice) => {
      const x = Number(slice.style.getPropertyValue("--x"));
      return [slice, x, x + Number(slice.style.getPropertyValue("--w")), Number(slice.style.getPropertyValue("--d"))];
    });
    const to = (key) => {
      const [, from, until] = shapes.find(([slice]) => slice.dataset.key === key) ?? shapes[0];
      slices.style.setProperty("--from", from);
      slices.style.setProperty("--span", Math.max(until - from, 1e-9));
      const least = 1e-9 + (until - from) * 1e-6;
      let deepest = 1;
      for (const [slice, left, right, depth] of shapes) {
        slice.hidden = right <= from + least || left >= until - least;
        if (!slice.hidden && right - left >= 0.003 * (until - from)) deepest = Math.max(deepest, depth);
      }
      slices.style.height = `${1.6 * (deepest + 1)}rem`;
      find("#icicle").dataset.level = key;
      const option = all("option", zoom).find((choice) => choice.value === key);
      zoom.value = option ? key : "";
      say(option ? `zoomed to ${option.textContent.trim()}` : "zoomed");
    };
    zoom.addEventListener("change", () => to(zoom.value));
    find("#whole").addEventListener("click", () => to("root"));
    slices.addEventListener("click", (event) => {
      const slice = event.target.closest(".slice");
      if (slice) to(slice.dataset.key);
    });
    find("#icicle").dataset.level = "root";
  }

  /* Long tables show their first rows until asked. */
  const unfold = (table, button) => { table.classList.remove("folded"); button?.remove(); };
  all("button.all").forEach((button) => {
    const table = find("table", button.previousElementSibling);
    button.addEventListener("click", () => { unfold(table, button); say("all rows are shown"); });
  });

  /* The table of regions: sorting and filtering. */
  const body = find("#regions tbody");
  const heads = all("#regions thead th");
  const rest = body ? all("tr.rest", body).length : 0;
  const top = body ? body.rows.length - rest : 0;
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
    if (rest) rows.forEach(([, row], number) => row.classList.toggle("rest", number >= top));
    say(`sorted by ${find("button", head).textContent.trim()}, ${down ? "descending" : "ascending"}`);
  }));
  const filter = find("#filter");
  const only = find("#only");
  function sift() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const table = find("#regions");
    if (words.length || only.value) unfold(table, table.parentElement.nextElementSibling?.matches("button.all") ? table.parentElement.nextElementSibling : null);
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
