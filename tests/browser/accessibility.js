() => {
  const found = [];
  const parse = (colour) => {
    const srgb = colour.match(/^color\(srgb ([\d.e-]+) ([\d.e-]+) ([\d.e-]+)(?: \/ ([\d.e-]+))?\)/);
    if (srgb) return [255 * srgb[1], 255 * srgb[2], 255 * srgb[3], srgb[4] === undefined ? 1 : Number(srgb[4])];
    const parts = colour.match(/[\d.]+/g)?.map(Number) ?? [0, 0, 0, 0];
    return parts.length === 3 ? [...parts, 1] : parts;
  };
  const over = (top, below) => top.slice(0, 3).map((c, i) => c * top[3] + below[i] * (1 - top[3]));
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      layers.push(parse(getComputedStyle(at).backgroundColor));
      if (layers.at(-1)[3] === 1) break;
    }
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const said = (element) => `${element.tagName.toLowerCase()}.${element.className} "${element.textContent.trim().slice(0, 40)}"`;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const seen = new Set();
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.textContent.trim() || seen.has(element) || element.closest("script, style, option, .hidden-text, noscript")) continue;
    seen.add(element);
    const box = element.getBoundingClientRect();
    const style = getComputedStyle(element);
    if (!element.checkVisibility() || box.width < 1 || box.height < 1 || box.right < 0 || parseFloat(style.fontSize) === 0) continue;
    const back = behind(element);
    const ink = parse(element.closest("svg") ? style.fill : style.color);
    const [high, low] = [luminance(over(ink, back)), luminance(back)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) found.push(`contrast ${ratio.toFixed(2)} of ${said(element)}`);
  }
  const named = (element) => element.getAttribute("aria-label")?.trim() || element.textContent.trim()
    || element.labels?.length || element.getAttribute("title")?.trim() || element.querySelector?.("title")?.textContent.trim();
  for (const control of document.querySelectorAll("button, a, select, input, textarea, summary")) {
    const text = control.matches("select, input, textarea") ? control.labels?.length || control.getAttribute("aria-label") : named(control);
    if (!text) found.push(`no name: ${said(control)}`);
    if (control.parentElement.closest("button, a, label button")) found.push(`nested: ${said(control)}`);
  }
  for (const picture of document.querySelectorAll("[role=img], img, svg:not([aria-hidden])")) {
    if (!(picture.getAttribute("aria-label") || picture.getAttribute("alt"))) found.push(`picture without words: ${said(picture)}`);
    if (picture.querySelector("button, a, select, input, [tabindex]")) found.push(`control inside a picture: ${said(picture)}`);
  }
  for (const hidden of document.querySelectorAll("[aria-hidden=true]")) {
    if (hidden.matches("button, a, input, select") || hidden.querySelector("button, a, input, select, [tabindex]")) found.push(`hidden control: ${said(hidden)}`);
  }
  for (const box of document.querySelectorAll("main *")) {
    const style = getComputedStyle(box);
    const scrolls = /auto|scroll/.test(style.overflowX + style.overflowY) && (box.scrollWidth > box.clientWidth + 1 || box.scrollHeight > box.clientHeight + 1);
    if (scrolls && box.tabIndex < 0 && !box.querySelector("button, a, select, input, [tabindex]")) found.push(`scrolls, but not by keyboard: ${said(box)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  ids.filter((id, at) => ids.indexOf(id) !== at).forEach((id) => found.push(`double id ${id}`));
  let level = 0;
  for (const heading of document.querySelectorAll("h1, h2, h3, h4")) {
    const now = Number(heading.tagName[1]);
    if (now > level + 1) found.push(`heading ${now} after ${level}: ${said(heading)}`);
    level = now;
  }
  for (const [what, number] of [["main", 1], ["h1", 1], ["title", 1]]) {
    if (document.querySelectorAll(`${what}:not(svg *)`).length !== number) found.push(`not one ${what}`);
  }
  if (!document.documentElement.lang) found.push("no language");
  for (const list of document.querySelectorAll("ul, ol")) {
    if ([...list.children].some((child) => child.tagName !== "LI")) found.push(`not a list: ${said(list)}`);
  }
  for (const list of document.querySelectorAll("dl")) {
    if ([...list.children].some((child) => !["DT", "DD", "DIV"].includes(child.tagName))) found.push(`not a list: ${said(list)}`);
  }
  return found;
}
