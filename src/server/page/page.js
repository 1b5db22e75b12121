// The playground: forms to requests, streams to panes, and what the server says of itself.
import { ApiError, getJson, getText, hasKey, readMetrics, setKey, stream } from "./api.js";
import { curl, python } from "./copy.js";
import { Card, Output, Settings, difference, element } from "./view.js";

const $ = (id) => document.getElementById(id);
const card = new Card($("card"), $("told"));
const turns = []; // messages of the conversation that were answered
let facts = null; // what GET /v1/models says of the model; null: not asked yet
let running = null; // AbortController of a run

const say = (text) => { $("status").textContent = text; };
const isChat = () => document.querySelector("input[name=mode]:checked").value === "chat";
const seconds = (ms) => `${(ms / 1000).toFixed(ms < 9950 ? 2 : 1)} s`;

// ---- panes -----------------------------------------------------------------------------------------------------------

class Pane {
  constructor(side) {
    this.side = side;
    const part = $("pane").content.cloneNode(true);
    for (const e of part.querySelectorAll("[data-id]")) e.id = `${e.dataset.id}-${side}`;
    for (const e of part.querySelectorAll("[data-for]")) e.htmlFor = `${e.dataset.for}-${side}`;
    this.root = part.firstElementChild;
    $("panes").append(part);
    this.el = (name) => $(`${name}-${side}`);
    this.settings = new Settings(this.el);
    this.output = null;
    this.request = null;
    this.#name();
    this.#listen();
  }

  #name() {
    const { el, side } = this;
    el("title").textContent = `Setting ${side}`;
    el("legend").textContent = `Setting ${side}`;
    this.root.setAttribute("aria-labelledby", `title-${side}`);
    el("output").setAttribute("aria-label", `Output ${side}`);
    for (const name of ["curl", "python"]) el(name).setAttribute("aria-label", `${el(name).textContent}, setting ${side}`);
  }

  #listen() {
    const { el } = this;
    const box = el("output");
    const token = (e) => e.target.closest?.(".tok")?.dataset.i;
    box.addEventListener("pointerover", (e) => { if (token(e) !== undefined) this.output.show(Number(token(e))); });
    box.addEventListener("pointerout", () => card.hideSoon());
    box.addEventListener("click", (e) => { if (token(e) !== undefined) this.output.pick(Number(token(e))); });
    box.addEventListener("focusout", () => this.output?.pick(-1));
    box.addEventListener("keydown", (e) => this.#key(e));
    el("curl").addEventListener("click", () => copy("curl", curl(new URL(this.path(), location.href).href, this.shape(), hasKey())));
    el("python").addEventListener("click", () => copy("Python", python(new URL("v1", location.href).href, this.shape(), hasKey())));
  }

  #key(e) {
    const to = e.ctrlKey || e.altKey || e.metaKey ? -1 : this.output?.step(e.key) ?? -1;
    if (to < 0) return;
    e.preventDefault();
    this.output.pick(to);
  }

  path() { return isChat() ? "v1/chat/completions" : "v1/completions"; }

  // The request that Run would send. An empty field is left out: the API's default, or its error, is what is shown.
  shape() {
    const typed = $("prompt").value;
    const input = isChat() ? { messages: [...systemMessage(), ...turns, { role: "user", content: typed }] } : { prompt: typed };
    const number = (id, name) => ($(id).value === "" ? {} : { [name]: Number($(id).value) });
    const r = { model: $("model").value, ...input, ...number("max-tokens", "max_tokens"), ...number("seed", "seed"), ...this.settings.read(), stream: true };
    return facts?.has_gate ? { ...r, gates: true } : r;
  }

  // Resolves with "done", "stopped" or "failed"; never throws.
  async run(request, path, signal, onToken) {
    const begun = performance.now();
    Object.assign(this, { first: 0, last: 0, finish: null, usage: null });
    this.output = new Output(this.el, card, facts);
    this.el("error").hidden = true;
    this.root.classList.add("busy");
    this.el("output").setAttribute("aria-busy", "true");
    const state = await this.#stream(request, path, signal, (n) => { this.last = performance.now(); this.first ||= n && this.last; onToken(); });
    this.root.classList.remove("busy");
    this.el("output").removeAttribute("aria-busy");
    this.output.writeDepths();
    this.#writeStats(state, begun);
    return state;
  }

  async #stream(request, path, signal, onChoice) {
    const more = { ...request, return_token_ids: true, stream_options: { include_usage: true } };
    try {
      await stream(path, more, signal, (frame) => {
        this.usage = frame.usage ?? this.usage;
        for (const choice of frame.choices) {
          this.finish = choice.finish_reason ?? this.finish;
          onChoice(this.output.add(choice));
        }
      });
      return "done";
    } catch (e) {
      if (e.name === "AbortError") return "stopped";
      showError(this.el("error"), e);
      return "failed";
    }
  }

  #writeStats(state, begun) {
    const n = this.output.tokens.length;
    const rate = n > 1 && this.last > this.first ? (n - 1) / ((this.last - this.first) / 1000) : 0;
    const parts = [`${n} tokens`];
    if (n) parts.push(`${this.output.meanLoops.toFixed(2)} loops each`, `first after ${seconds(this.first - begun)}`);
    if (rate) parts.push(`${rate.toFixed(rate < 100 ? 1 : 0)} tokens a second`);
    if (this.usage) parts.push(`prompt ${this.usage.prompt_tokens} tokens`);
    parts.push(state === "done" ? `ended by ${this.finish}` : state);
    this.el("stats").textContent = parts.join(" · ");
  }
}

const panes = [new Pane("A"), new Pane("B")];
const active = () => ($("compare").checked ? panes : panes.slice(0, 1));

// Errors as the API gives them: the sentence, and every other member that says something.
function showError(box, e) {
  const said = e instanceof ApiError;
  const rows = said ? [["type", e.type], ["code", e.code], ["param", e.param], ["Retry-After", e.retryAfter && `${e.retryAfter} s`]] : [];
  const more = rows.filter(([, v]) => v !== null && v !== undefined).map(([k, v]) => `${k}: ${v}`).join(" · ");
  const what = said ? `HTTP ${e.status}` : "No answer";
  box.replaceChildren(element("b", {}, what), element("span", {}, e.message), element("div", { className: "members" }, more));
  box.hidden = false;
  if (said && e.status === 401) askForKey();
}

// ---- runs ------------------------------------------------------------------------------------------------------------

function systemMessage() {
  const content = $("system").value;
  return content === "" ? [] : [{ role: "system", content }];
}

// While outputs grow, what one of them does not have yet is no difference.
function compare(isOver) {
  const [a, b] = panes.map((p) => p.output.ids);
  const n = isOver ? Infinity : Math.min(a.length, b.length);
  const { inA, inB, first } = difference(a.slice(0, n), b.slice(0, n));
  panes[0].output.mark(inA);
  panes[1].output.mark(inB);
  const count = (marks) => marks.reduce((sum, m) => sum + m, 0);
  $("difference").textContent = first < 0 ? "A and B are the same, token by token." : `A and B differ from token ${first + 1} on: ${count(inA)} of ${a.length} tokens of A and ${count(inB)} of ${b.length} of B are marked.`;
  $("difference").hidden = false;
}

// At most five comparisons a second, and a tenth of the time: they cost more the longer the outputs are.
function comparer(both) {
  let next = 0;
  return () => {
    const now = performance.now();
    if (!both || now < next) return;
    compare(false);
    next = performance.now() + Math.max(200, 9 * (performance.now() - now));
  };
}

async function run() {
  if (!facts) return;
  running?.abort();
  const mine = running = new AbortController();
  const chosen = active(), chat = isChat(), typed = $("prompt").value;
  $("stop").disabled = false;
  $("difference").hidden = true;
  say("Generating.");
  poll();
  const onToken = comparer(chosen.length > 1);
  const states = await Promise.all(chosen.map((p) => p.run(p.shape(), p.path(), mine.signal, onToken)));
  if (running !== mine) return; // a later run took over
  running = null;
  if (chosen.length > 1) compare(true);
  if (chat && states[0] !== "failed" && panes[0].output.text) remember(typed);
  rest();
  say(chosen.map((p, i) => `${p.side}: ${states[i] === "failed" ? "failed, see its error" : `${states[i]}, ${p.output.tokens.length} tokens`}`).join(". "));
  poll();
}

function rest() {
  if (document.activeElement === $("stop")) $("prompt").focus();
  $("stop").disabled = true;
}

// What A answered is what the conversation goes on with, its tints included.
function remember(typed) {
  const { output } = panes[0];
  turns.push({ role: "user", content: typed }, { role: "assistant", content: output.text });
  const answer = element("li", { className: "assistant" }, element("b", {}, "assistant"));
  for (const node of $("output-A").childNodes) answer.append(node.cloneNode(true));
  $("turns").append(element("li", {}, element("b", {}, "user"), typed), answer);
  $("prompt").value = "";
}

// ---- copies ----------------------------------------------------------------------------------------------------------

async function copy(what, text) {
  try {
    await navigator.clipboard.writeText(text);
    say(`Copied as ${what}.`);
  } catch {
    $("code-text").value = text;
    $("code").showModal();
    $("code-text").select();
  }
}

// ---- the server ------------------------------------------------------------------------------------------------------

function askForKey() {
  if (!$("key-form").hidden) return;
  $("key-form").hidden = false;
  $("key").focus();
}

function showModel(list) {
  const m = list.data[0];
  facts = { n_loop: 1, max_loops: 1, has_gate: false, ...m.gyre };
  $("model").replaceChildren(...list.data.map(({ id }) => element("option", {}, id)));
  $("model-box").hidden = list.data.length < 2;
  $("about").textContent = `${m.id} · ${facts.family ?? "unknown family"} · ${facts.n_loop} loops${facts.has_gate ? ", exit gate" : ""}${facts.has_chat_template === false ? ", no chat template" : ""} · context ${m.max_model_len} tokens`;
  for (const e of document.querySelectorAll("#run, [id^=curl-], [id^=python-]")) e.disabled = false;
  panes[0].settings.setModel(facts, "gate");
  panes[1].settings.setModel(facts, "fixed");
}

// Until the model is there. A key that is wrong is said once, not again and again.
async function connect() {
  try {
    showModel(await getJson("v1/models"));
    $("key-form").hidden = true;
    poll();
  } catch (e) {
    $("about").textContent = e.message;
    if (e.status === 401) askForKey();
    else setTimeout(connect, 1000 * Math.max(1, Number(e.retryAfter) || 2));
  }
}

let before = null, busy = false, timer = 0;

// Rates are those between two readings.
function showMetrics(now, m) {
  const get = (name) => m.get(name) ?? 0;
  const tokens = get("vllm:generation_tokens_total"), loops = get("gyre:loops_per_token_sum"), n = get("gyre:loops_per_token_count");
  const dn = before ? n - before.n : 0;
  if (before) $("live-rate").textContent = (Math.max(0, tokens - before.tokens) / ((now - before.now) / 1000)).toFixed(0);
  if (dn > 0) $("live-loops").textContent = ((loops - before.loops) / dn).toFixed(2);
  else if (!before && n > 0) $("live-loops").textContent = (loops / n).toFixed(2);
  const kv = 100 * get("vllm:kv_cache_usage_perc");
  $("live-kv").textContent = `${kv.toFixed(kv < 10 ? 2 : 1)} %`;
  busy = get("vllm:num_requests_running") > 0;
  $("live-running").textContent = get("vllm:num_requests_running");
  $("live-waiting").textContent = get("vllm:num_requests_waiting");
  before = { now, tokens, loops, n };
}

// Every second while something runs, every three otherwise, not while nobody looks.
async function poll() {
  clearTimeout(timer);
  if (!facts) return;
  try {
    if (!document.hidden) showMetrics(performance.now(), readMetrics(await getText("metrics")));
  } catch {
    for (const e of document.querySelectorAll("#live dd")) e.textContent = "–";
    before = null;
  }
  clearTimeout(timer);
  timer = setTimeout(poll, running || busy ? 1000 : 3000);
}

// ---- the page --------------------------------------------------------------------------------------------------------

function setMode() {
  $("chat").hidden = !isChat();
  $("prompt-label").textContent = isChat() ? "Message" : "Prompt";
  $("prompt").focus();
}

function setCompare() {
  const two = $("compare").checked;
  panes[1].root.hidden = !two;
  $("panes").classList.toggle("two", two);
  $("difference").hidden = true;
  for (const p of panes) p.output?.mark([]);
}

function forget() {
  turns.length = 0;
  $("turns").replaceChildren();
  say("A new conversation.");
}

function onKey(e) {
  if (e.key === "Enter" && (e.ctrlKey || e.metaKey) && !$("code").open) {
    e.preventDefault();
    run();
  } else if (e.key === "Escape") {
    if (!$("card").hidden) card.hide();
    else running?.abort();
  }
}

for (const e of document.querySelectorAll("input[name=mode]")) e.addEventListener("change", setMode);
$("compare").addEventListener("change", setCompare);
$("counts").addEventListener("change", () => document.body.classList.toggle("counts", $("counts").checked));
$("example").addEventListener("change", () => { if ($("example").value) $("prompt").value = $("example").value; });
$("theme").addEventListener("change", () => { document.documentElement.dataset.theme = $("theme").value; });
$("forget").addEventListener("click", forget);
$("stop").addEventListener("click", () => running?.abort());
$("ask").addEventListener("submit", (e) => { e.preventDefault(); run(); });
$("key-form").addEventListener("submit", (e) => {
  e.preventDefault();
  setKey($("key").value);
  connect();
});
document.addEventListener("keydown", onKey);
document.addEventListener("scroll", () => card.follow(), { capture: true, passive: true });
addEventListener("pagehide", () => running?.abort()); // a page that the browser keeps for going back would go on reading
addEventListener("resize", () => card.follow());
document.addEventListener("visibilitychange", poll);
setCompare();
connect();
