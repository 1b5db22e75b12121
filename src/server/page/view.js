// What a pane shows: its settings, its tokens tinted by their loops, the card of one token, where two outputs differ.
// Text gets into the page as text nodes only; the page's policy would refuse anything else.

export function element(name, props = {}, ...children) {
  const e = document.createElement(name);
  Object.assign(e, props);
  e.append(...children);
  return e;
}

// ---- settings --------------------------------------------------------------------------------------------------------

// Ranges of the sliders: what the rule allows (gates), or around its published threshold.
const RULES = {
  fixed: { name: "fixed depth", at: null },
  gate: { name: "gate", at: [0, 1, 0.01, 0.95], gate: true },
  gate_delayed: { name: "gate, one loop later", at: [0, 1, 0.01, 0.5], gate: true },
  select: { name: "gate, all loops run", at: [0, 1, 0.01, 0.5], gate: true },
  latent: { name: "hidden state at rest", at: [0, 0.2, 0.001, 0.03] },
  kl: { name: "KL between two loops", at: [0, 0.005, 0.00005, 0.0005] },
  entropy: { name: "change of entropy", at: [0, 0.01, 0.0001, 0.001] },
  argmax: { name: "same token for so many loops", at: [1, 16, 1, 5] },
};

export class Settings {
  constructor(el) {
    this.el = el;
    el("exit").addEventListener("change", () => this.#setRule());
    for (const name of ["threshold", "temperature"]) el(name).addEventListener("input", () => this.#write());
    for (const name of ["min", "max"]) el(name).addEventListener("input", () => this.#keepOrder(name));
  }

  // rule: which one is chosen first, where the model has what it needs.
  setModel(facts, rule) {
    const { el } = this;
    const names = Object.keys(RULES).filter((r) => facts.has_gate || !RULES[r].gate);
    el("exit").replaceChildren(...names.map((value) => element("option", { value }, RULES[value].name)));
    el("exit").value = names.includes(rule) ? rule : "fixed";
    for (const name of ["min", "max"]) {
      el(name).max = facts.max_loops;
      el(name).value = name === "min" ? 1 : facts.n_loop;
    }
    this.#setRule();
  }

  #setRule() {
    const { at } = RULES[this.el("exit").value];
    const slider = this.el("threshold");
    slider.disabled = !at;
    if (at) [slider.min, slider.max, slider.step, slider.value] = at;
    this.#write();
  }

  // The slider that moved pushes the other one.
  #keepOrder(moved) {
    const other = this.el(moved === "min" ? "max" : "min");
    const value = Number(this.el(moved).value);
    if (moved === "min" ? Number(other.value) < value : Number(other.value) > value) other.value = value;
    this.#write();
  }

  #write() {
    const { el } = this;
    for (const name of ["threshold", "min", "max", "temperature"]) el(`${name}-out`).textContent = el(name).value;
    if (el("threshold").disabled) el("threshold-out").textContent = "–";
  }

  // Fields of a request.
  read() {
    const { el } = this;
    const rule = { exit: el("exit").value };
    if (!el("threshold").disabled) rule.exit_threshold = Number(el("threshold").value);
    return { temperature: Number(el("temperature").value), ...rule, min_loops: Number(el("min").value), max_loops: Number(el("max").value) };
  }
}

// ---- tokens ----------------------------------------------------------------------------------------------------------

const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
const tint = (e, loops, nLoop) => e.style.setProperty("--d", nLoop > 1 ? Math.min(1, (loops - 1) / (nLoop - 1)) : 0);

// Tokens of one output, in order: {text, loops, gates, id}, and where each stands on the page.
export class Output {
  constructor(el, card, facts) {
    this.el = el;
    this.card = card;
    this.facts = facts;
    this.tokens = [];
    this.rest = ""; // text that came with no token: what was held back, at the end
    this.picked = -1;
    this.isLate = false; // the box is to be scrolled before the next frame is drawn
    el("output").replaceChildren();
    el("depths").replaceChildren();
  }

  get text() { return this.tokens.map((t) => t.content).join("") + this.rest; }
  get ids() { return this.tokens.map((t) => t.id); }
  get meanLoops() { return this.tokens.reduce((sum, t) => sum + t.loops, 0) / this.tokens.length; }

  // A choice of a stream's frame. Returns 1 if it was a token.
  add(choice) {
    const content = choice.text ?? choice.delta?.content ?? "";
    const thought = choice.delta?.reasoning_content ?? "";
    if (!choice.loops) {
      this.rest += content;
      if (content || thought) this.el("output").append(thought + content);
      return 0;
    }
    const t = { content, shown: thought + content, isThought: thought !== "", loops: choice.loops[0], gates: choice.gates?.[0] ?? [], id: choice.token_ids?.[0] };
    t.span = this.#span(t, this.tokens.length);
    this.tokens.push(t);
    this.el("output").append(t.span);
    this.#keepEnd();
    return 1;
  }

  // Who reads at the end goes on reading there. Once a frame: each look at a height lays the whole box out.
  #keepEnd() {
    if (this.isLate) return;
    this.isLate = true;
    requestAnimationFrame(() => {
      const box = this.el("output");
      if (box.scrollHeight - box.scrollTop - box.clientHeight < 200) box.scrollTop = box.scrollHeight;
      this.isLate = false;
    });
  }

  #span(t, i) {
    const span = element("span", { className: "tok" }, t.shown);
    span.dataset.i = i;
    span.dataset.loops = t.loops;
    tint(span, t.loops, this.facts.n_loop);
    span.classList.toggle("think", t.isThought);
    span.classList.toggle("none", t.shown === "");
    span.classList.toggle("line", /^\s*\n\s*$/.test(t.shown));
    return span;
  }

  // How many tokens took one loop, two, ...: the legend of the tints, too.
  writeDepths() {
    const count = new Map();
    for (const t of this.tokens) count.set(t.loops, (count.get(t.loops) ?? 0) + 1);
    const items = [...count].sort(([a], [b]) => a - b).map(([loops, n]) => {
      const li = element("li", { className: "tint" }, `${plural(loops, "loop")}: ${n}`);
      tint(li, loops, this.facts.n_loop);
      return li;
    });
    this.el("depths").replaceChildren(...items);
  }

  pick(i) {
    this.tokens[this.picked]?.span.classList.remove("picked");
    this.picked = i;
    const t = this.tokens[i];
    if (!t) {
      this.card.hide();
      return;
    }
    t.span.classList.add("picked");
    t.span.scrollIntoView({ block: "nearest" });
    this.show(i);
    this.card.tell();
  }

  show(i) {
    const t = this.tokens[i];
    if (t) this.card.show(t, `token ${i + 1} of ${this.tokens.length}`);
  }

  // Keys of the output: the token that they lead to, or -1.
  step(name) {
    const last = this.tokens.length - 1;
    const to = { ArrowRight: Math.min(last, this.picked + 1), ArrowLeft: Math.max(0, this.picked - 1), Home: 0, End: last }[name];
    return to ?? -1;
  }

  mark(differs) {
    this.tokens.forEach((t, i) => {
      t.differs = differs[i] === 1;
      t.span.classList.toggle("differs", t.differs);
    });
  }
}

// ---- the card of a token ---------------------------------------------------------------------------------------------

const sigmoid = (x) => 1 / (1 + Math.exp(-x));

// What the gate said after each loop, and the probability of having left by then: the ouro rule's two numbers.
export function gateRows(gates) {
  let stay = 1;
  return gates.map((raw) => {
    const gate = sigmoid(raw);
    stay *= 1 - gate;
    return { gate, left: 1 - stay };
  });
}

export class Card {
  // told: where it is said to who does not see the card.
  constructor(box, told) {
    this.box = box;
    this.told = told;
    this.timer = 0;
    box.addEventListener("pointerenter", () => clearTimeout(this.timer));
    box.addEventListener("pointerleave", () => this.hideSoon());
  }

  show(t, place) {
    clearTimeout(this.timer);
    const facts = [place, t.id === undefined ? "" : `id ${t.id}`, plural(t.loops, "loop"), t.differs ? "differs" : ""];
    this.lines = [t.shown === "" ? "no text yet" : JSON.stringify(t.shown), facts.filter(Boolean).join(" · ")];
    const parts = this.lines.map((line) => element("p", {}, line));
    if (t.gates.length) parts.push(this.#table(t));
    this.box.replaceChildren(...parts);
    this.box.hidden = false;
    this.token = t;
    this.follow();
  }

  tell() {
    const gates = gateRows(this.token.gates).map(({ gate, left }, i) => `after loop ${i + 1} gate ${gate.toFixed(2)}, left ${left.toFixed(2)}`);
    this.told.textContent = [...this.lines, ...gates].join("; ");
  }

  #table(t) {
    const head = ["loop", "gate", "left by then", ""].map((s) => element("th", { scope: "col" }, s));
    head[3].append(element("span", { className: "aside" }, "as a bar"));
    const rows = gateRows(t.gates).map(({ gate, left }, i) => {
      const bar = element("i");
      bar.style.setProperty("--p", left);
      const cells = [element("th", { scope: "row" }, String(i + 1)), element("td", {}, gate.toFixed(3)), element("td", {}, left.toFixed(3)), element("td", { className: "bar" }, bar)];
      return element("tr", { className: i + 1 === t.loops ? "left" : "" }, ...cells);
    });
    return element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
  }

  // Below its token, above it where there is no room; wherever the token is scrolled to.
  follow() {
    if (this.box.hidden) return;
    const at = this.token.span.getBoundingClientRect();
    const { offsetWidth: w, offsetHeight: h, style } = this.box;
    const top = at.bottom + 6 + h <= innerHeight ? at.bottom + 6 : Math.max(4, at.top - h - 6);
    style.left = `${Math.max(4, Math.min(at.left, innerWidth - w - 4))}px`;
    style.top = `${top}px`;
  }

  hide() { this.box.hidden = true; }
  // Time to get onto the card with the pointer.
  hideSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.hide(), 200);
  }
}

// ---- two outputs -----------------------------------------------------------------------------------------------------

const MAX_CELLS = 4e6;

// Lengths of longest common subsequences of a[i..] and b[j..], row by row.
function table(a, b) {
  const w = b.length + 1;
  const t = new Uint16Array((a.length + 1) * w);
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      t[i * w + j] = a[i] === b[j] ? t[(i + 1) * w + j + 1] + 1 : Math.max(t[(i + 1) * w + j], t[i * w + j + 1]);
  return t;
}

// Marks what is in no longest common subsequence: 1 for a token that the other output lacks. Outputs too long for the
// table are compared place by place behind their common beginning.
export function difference(a, b) {
  const inA = new Uint8Array(a.length).fill(1), inB = new Uint8Array(b.length).fill(1);
  let first = 0;
  while (first < a.length && first < b.length && a[first] === b[first]) inA[first] = inB[first++] = 0;
  const restA = a.slice(first), restB = b.slice(first), w = restB.length + 1;
  const same = restA.length === 0 && restB.length === 0;
  if (restA.length * restB.length > MAX_CELLS) {
    for (let i = 0; i < restA.length && i < restB.length; i++) if (restA[i] === restB[i]) inA[first + i] = inB[first + i] = 0;
    return { inA, inB, first };
  }
  const t = table(restA, restB);
  for (let i = 0, j = 0; i < restA.length && j < restB.length;) {
    if (restA[i] === restB[j]) inA[first + i++] = inB[first + j++] = 0;
    else if (t[(i + 1) * w + j] >= t[i * w + j + 1]) i++;
    else j++;
  }
  return { inA, inB, first: same ? -1 : first };
}
