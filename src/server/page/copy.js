// A request as a command and as a program. The key is never part of them: they read GYRE_API_KEY.

const KEY_ENV = "GYRE_API_KEY";
const shell = (s) => `'${s.replaceAll("'", "'\\''")}'`;

export function curl(url, request, withKey) {
  const key = withKey ? ` \\\n  -H "Authorization: Bearer $${KEY_ENV}"` : "";
  return `curl -N ${shell(url)}${key} \\\n  -H 'Content-Type: application/json' \\\n  -d ${shell(JSON.stringify(request))}\n`;
}

// JSON's strings, numbers and brackets are Python's too.
function literal(v) {
  if (v === null) return "None";
  if (v === true) return "True";
  if (v === false) return "False";
  if (Array.isArray(v)) return `[${v.map(literal).join(", ")}]`;
  if (typeof v === "object") return `{${Object.entries(v).map(([k, x]) => `${literal(k)}: ${literal(x)}`).join(", ")}}`;
  return JSON.stringify(v);
}

// What openai's package has an argument for; the rest goes into extra_body.
const OPENAI = new Set(["model", "prompt", "messages", "max_tokens", "temperature", "seed", "stream"]);

export function python(base, request, withKey) {
  const own = Object.entries(request).filter(([k]) => OPENAI.has(k));
  const extra = Object.fromEntries(Object.entries(request).filter(([k]) => !OPENAI.has(k) && k !== "stream_options"));
  const chat = "messages" in request;
  const key = withKey ? `os.environ[${literal(KEY_ENV)}]` : literal("none");
  return `# pip install openai
${withKey ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${literal(base)}, api_key=${key})
stream = client.${chat ? "chat.completions" : "completions"}.create(
${own.map(([k, v]) => `    ${k}=${literal(v)},\n`).join("")}    extra_body=${literal(extra)},
)
loops = []
for chunk in stream:
    for choice in chunk.choices:
        print(${chat ? 'choice.delta.content or ""' : "choice.text"}, end="", flush=True)
        loops += (choice.model_extra or {}).get("loops", [])
print()
print("loops:", loops)
`;
}
