// Asks a server through OpenAI's own client for Node, and prints what came as one line of JSON.
// node ask.mjs URL CASE
import OpenAI from "openai";

const [url, name] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, timeout: 60_000 });
const model = "tiny-llada";
const messages = [{ role: "user", content: "What is the capital of France?" }];

async function refusal(call) {
  try {
    await call();
  } catch (error) {
    const { status, param, code, type, message } = error;
    return { kind: error.constructor.name, typed: error instanceof OpenAI.APIError, status, param, code, type, message };
  }
  throw new Error("nothing was refused");
}

const cases = {
  async chat() {
    const done = await client.chat.completions.create({ model, messages, seed: 1 });
    return { text: done.choices[0].message.content, finish: done.choices[0].finish_reason, usage: done.usage };
  },

  async stream() {
    const chunks = await client.chat.completions.create({
      model, messages, seed: 1, stream: true, stream_options: { include_usage: true },
    });
    let text = "", finish = null, usage = null;
    for await (const chunk of chunks) {
      text += chunk.choices[0]?.delta.content ?? "";
      finish = chunk.choices[0]?.finish_reason ?? finish;
      usage = chunk.usage ?? usage;
    }
    return { text, finish, usage };
  },

  async helper() {
    const runner = client.chat.completions.stream({ model, messages, seed: 1 });
    const done = await runner.finalChatCompletion();
    return { text: done.choices[0].message.content, finish: done.choices[0].finish_reason };
  },

  async completions() {
    const asked = { model, prompt: "One morning", max_tokens: 12, temperature: 0 };
    const whole = await client.completions.create(asked);
    let text = "";
    for await (const chunk of await client.completions.create({ ...asked, stream: true })) text += chunk.choices[0].text;
    return { whole: whole.choices[0].text, streamed: text };
  },

  async models() {
    const listed = [];
    for await (const one of client.models.list()) listed.push(one.id);
    return { listed, single: (await client.models.retrieve(model)).id };
  },

  badValue: () => refusal(() => client.chat.completions.create({ model, messages, temperature: 9 })),
  badStream: () => refusal(() => client.chat.completions.create({ model, messages, top_p: 7, stream: true })),
  badModel: () => refusal(() => client.chat.completions.create({ model: "gpt-4o", messages })),

  // The process lives on until its input is closed: only the abort can have freed the request.
  async abort() {
    const stream = await client.chat.completions.create({
      model, messages, stream: true, max_tokens: 200, decoder: "llada", early_stop: false,
    });
    for await (const chunk of stream) {
      if (chunk.choices.length) break;
    }
    stream.controller.abort();
    return { aborted: stream.controller.signal.aborted };
  },
};

console.log(JSON.stringify(await cases[name]()));
if (name === "abort") for await (const _ of process.stdin);
