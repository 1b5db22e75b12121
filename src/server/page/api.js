// What the page asks of the server: the key, errors as the API gives them, streams, metrics. No DOM in here.
// Paths are relative, so that the page works behind a proxy that serves gyre under a path of its own.

let key = ""; // in memory only

export const setKey = (k) => { key = k.trim(); };
export const hasKey = () => key !== "";

export class ApiError extends Error {
  constructor(status, error, retryAfter) {
    super(error.message);
    Object.assign(this, { status, type: error.type, code: error.code, param: error.param, retryAfter });
  }
}

async function failure(response) {
  const text = await response.text();
  let error = null;
  try { error = JSON.parse(text).error; } catch { /* of a proxy, say */ }
  if (!error || typeof error.message !== "string") error = { message: text.slice(0, 500) || response.statusText };
  return new ApiError(response.status, error, response.headers.get("Retry-After"));
}

async function ask(path, init = {}) {
  const headers = { ...init.headers };
  if (key) headers.Authorization = `Bearer ${key}`;
  const response = await fetch(path, { cache: "no-store", credentials: "same-origin", ...init, headers });
  if (!response.ok) throw await failure(response);
  return response;
}

export const getJson = async (path) => (await ask(path)).json();
export const getText = async (path) => (await ask(path)).text();

// The data of each event, as text. Events end with an empty line; a network may cut them anywhere.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const p of parts) if (p.startsWith("data: ")) yield p.slice(6);
  }
}

// onFrame gets each frame. Resolves when the stream is complete; everything else is an exception.
export async function stream(path, request, signal, onFrame) {
  const init = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(request), signal };
  const response = await ask(path, init);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const frame = JSON.parse(data);
    if (frame.error) throw new ApiError(response.status, frame.error, null);
    onFrame(frame);
  }
  throw new Error("the stream ended before it was complete");
}

// Sums of the series of each name, of Prometheus' text format.
export function readMetrics(text) {
  const sums = new Map();
  for (const line of text.split("\n")) {
    const m = /^([a-z_:]+)(?:\{.*\})? (\S+)$/.exec(line);
    if (m) sums.set(m[1], (sums.get(m[1]) ?? 0) + Number(m[2]));
  }
  return sums;
}
