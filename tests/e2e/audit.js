// Runs in the page: what a person with a screen reader, with the keyboard alone or with weak sight would stumble over.
// Returns sentences; none is right. The rules are those of WCAG 2.2 AA that a program can judge: names (4.1.2, 1.3.1, 3.3.2),
// contrast (1.4.3, 1.4.11), headings and landmarks (1.3.1, 2.4.6), language and title (3.1.1, 2.4.2), order of focus (2.4.3),
// size of targets (2.5.8), ids and references, nothing wider than the window (1.4.10).
(() => {
  const faults = [];
  const name = (e) => `<${e.tagName.toLowerCase()}${e.id ? ` #${e.id}` : ""}${e.className ? ` .${e.className}` : ""}> "${e.textContent.trim().slice(0, 30)}"`;
  const all = (s) => [...document.querySelectorAll(s)];
  const shown = (e) => e.checkVisibility({ visibilityProperty: true }) && e.getClientRects().length > 0;
  const forEyes = (e) => shown(e) && !e.closest(".aside") && !(e.closest(".skip") && document.activeElement !== e.closest(".skip"));

  // ---- colours: drawn on a canvas, so that every notation is read as the browser reads it
  const pen = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
  const behind = (e) => {
    if (!e) return rgba(matchMedia("(prefers-color-scheme: dark)").matches ? "black" : "white").slice(0, 3);
    const own = rgba(getComputedStyle(e).backgroundColor);
    return own[3] === 1 ? own.slice(0, 3) : over(own, behind(e.parentElement));
  };
  const light = (c) => c.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);

  let texts = 0;
  const judge = (e, colour, what, need) => {
    const ground = behind(e), ratio = contrast(over(rgba(colour), ground), ground);
    texts++;
    if (ratio < need) faults.push(`contrast ${ratio.toFixed(2)} < ${need}: ${what} of ${name(e)}`);
  };
  for (const e of all("body *")) {
    const s = getComputedStyle(e);
    const px = parseFloat(s.fontSize), need = px >= 24 || (px >= 18.66 && Number(s.fontWeight) >= 700) ? 3 : 4.5;
    const hasText = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || ["::before", "::after"].some((p) => !["none", "normal", '""'].includes(getComputedStyle(e, p).content));
    const isField = e.matches("input:not([type=range], [type=radio], [type=checkbox]), select, textarea");
    if (!forEyes(e) || e.closest("[disabled]")) continue;
    if (hasText || isField) judge(e, s.color, "text", need);
    for (const p of ["::before", "::after"]) if (!["none", "normal", '""'].includes(getComputedStyle(e, p).content)) judge(e, getComputedStyle(e, p).color, p, 4.5);
    if (e.matches("input, select, textarea, button") && parseFloat(s.borderTopWidth) > 0 && s.borderTopStyle !== "none" && !e.matches("[type=radio], [type=checkbox]")) {
      const ratio = Math.max(contrast(over(rgba(s.borderTopColor), behind(e.parentElement)), behind(e.parentElement)), contrast(behind(e), behind(e.parentElement)));
      if (ratio < 3) faults.push(`contrast ${ratio.toFixed(2)} < 3: edge of ${name(e)}`);
    }
    if (e.matches(".differs")) {
      const ratio = contrast(rgba(s.boxShadow.match(/^(rgba?|color|oklch|hsl)\([^)]*\)/)[0]).slice(0, 3), behind(e));
      if (ratio < 3) faults.push(`contrast ${ratio.toFixed(2)} < 3: mark of ${name(e)}`);
    }
  }
  if (texts < 30) faults.push(`only ${texts} texts were looked at`);

  // ---- names
  const text = (ids) => ids.split(/\s+/).map((id) => document.getElementById(id)?.textContent ?? "").join(" ").trim();
  const accessible = (e) => text(e.getAttribute("aria-labelledby") ?? "") || e.getAttribute("aria-label") || [...(e.labels ?? [])].map((l) => l.textContent.trim()).join(" ") || (e.matches("button, a, h1, h2, th, summary") ? e.textContent.trim() : "") || e.alt;
  for (const e of all("button, input, select, textarea, a[href], [tabindex], img, section, dialog, fieldset, [role=group], ol[aria-label]")) {
    if (!shown(e)) continue;
    const own = e.tagName === "FIELDSET" ? e.querySelector("legend")?.textContent : accessible(e);
    if (!own) faults.push(`no name: ${name(e)}`);
    if (e.tabIndex > 0) faults.push(`positive tabindex: ${name(e)}`);
    const visible = e.matches("button") && e.textContent.trim();
    if (visible && !accessible(e).includes(visible)) faults.push(`the name lacks the visible label: ${name(e)}`);
  }
  const twice = (list) => list.filter((v, i) => list.indexOf(v) !== i);
  const names = all("button, input, select, textarea").filter(shown).map(accessible);
  for (const n of twice(names)) if (!["Exit rule", "Exit threshold", "Min loops", "Max loops", "Temperature"].includes(n)) faults.push(`two controls are called "${n}"`);
  for (const id of twice(all("[id]").map((e) => e.id))) faults.push(`id twice: ${id}`);
  for (const a of ["for", "aria-labelledby", "aria-describedby", "aria-controls"])
    for (const e of all(`[${a}]`)) for (const id of e.getAttribute(a).split(/\s+/)) if (!document.getElementById(id)) faults.push(`${a} leads nowhere: ${id}`);
  for (const e of all("[role]")) if (!["status", "alert", "group"].includes(e.getAttribute("role"))) faults.push(`unknown role: ${name(e)}`);

  // ---- the whole
  if (!document.documentElement.lang || !document.title) faults.push("no language or title");
  if (/user-scalable|maximum-scale/.test(document.querySelector("meta[name=viewport]").content)) faults.push("zoom is kept away");
  const heads = all("h1, h2, h3, h4").filter(shown).map((e) => Number(e.tagName[1]));
  if (heads.filter((h) => h === 1).length !== 1) faults.push("not one h1");
  heads.forEach((h, i) => { if (i && h > heads[i - 1] + 1) faults.push(`heading ${h} behind ${heads[i - 1]}`); });
  if (all("main").length !== 1 || all("header").length !== 1) faults.push("not one main and header");
  for (const e of all("body > *")) if (forEyes(e) && !e.matches("header, main, section, dialog, .skip, [role=status]")) faults.push(`outside of all landmarks: ${name(e)}`);
  for (const e of all("button, input, select, textarea, a[href]")) {
    if (!forEyes(e)) continue;
    const { width, height } = e.getBoundingClientRect();
    if (!e.matches("[type=range]") && (width < 24 || height < 24)) faults.push(`target of ${width} x ${height}: ${name(e)}`);
  }
  const wide = document.documentElement.scrollWidth - innerWidth;
  if (wide > 0) faults.push(`${wide} pixels wider than the window`);
  return faults;
})()
