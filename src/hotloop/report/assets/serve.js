"use strict";
(() => {
  const find = (selector, inside = document) => inside.querySelector(selector);
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

  /* The list of runs: a filter, and a button that compares two. */
  const filter = find("#runs-filter");
  const chosen = () => all('input[name="run"]:checked');
  function update() {
    if (!filter) return;
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    const rows = all("#runs-table tbody tr");
    for (const row of rows) {
      row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
      left += !row.hidden;
    }
    find("#runs-shown").textContent = `${left} of ${rows.length} runs`;
    find("#compare").disabled = chosen().length !== 2;
  }
  if (filter) {
    filter.addEventListener("input", update);
    document.addEventListener("change", update);
    update();
  }

  /* Parts of the page that change: asked for again while the page is in view, replaced only if they differ. */
  all("[data-refresh]").forEach((part) => {
    const again = async () => {
      if (document.hidden) return;
      try {
        const answer = await fetch(part.dataset.refresh, { cache: "no-store" });
        if (!answer.ok) return;
        const text = await answer.text();
        if (text === part.dataset.last) return;
        const selected = chosen().map((box) => box.value);
        const focused = document.activeElement?.closest?.("[data-refresh]") === part ? document.activeElement.value : null;
        const opened = all("details[open] > summary", part).map((summary) => summary.textContent);
        part.innerHTML = text;
        part.dataset.last = text;
        all('input[name="run"]', part).forEach((box) => { box.checked = selected.includes(box.value); if (focused && box.value === focused) box.focus(); });
        all("details > summary", part).forEach((summary) => { summary.parentElement.open = opened.includes(summary.textContent); });
        update();
      } catch { /* the server has gone; what is shown stays */ }
    };
    setInterval(again, 1000 * Number(part.dataset.every));
  });
})();
