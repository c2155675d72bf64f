// Talks to the server that this page came from, whose addresses are relative: a proxy may put it anywhere.

export class Refused extends Error {
  // `status` is 0 where no answer came at all.
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export async function models(key) {
  return (await (await call("v1/models", { headers: headers(key) })).json()).data;
}

// The server's description of itself.
export async function description(key) {
  return (await call("openapi.json", { headers: headers(key) })).json();
}

// Yields the chunks of an answer.
export async function* chunks(body, key, signal) {
  const response = await call("v1/chat/completions", {
    method: "POST",
    headers: { ...headers(key), "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Refused(chunk.error.message, response.status);
    yield chunk;
  }
  throw new Refused("The connection ended before the answer did.");
}

function headers(key) {
  if (/[^\x21-\x7e]/.test(key)) throw new Refused("An API key has ASCII characters alone, and no blanks.", 401);
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function call(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server cannot be reached.");
  }
  if (response.ok) return response;
  const said = await response.json().catch(() => null);
  throw new Refused(said?.error?.message ?? `The server answered ${response.status}.`, response.status);
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split(/\r?\n\r?\n/);
      rest = parts.pop();
      for (const part of parts) {
        const lines = part.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The connection broke.");
  } finally {
    reader.cancel().catch(() => {});
  }
}
