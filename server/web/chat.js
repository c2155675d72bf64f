// The conversation: questions, their settings, and the server's answers.

import { element } from "./canvas.js";
import { chunks, models } from "./stream.js";
import { Turn } from "./turn.js";

const byId = (id) => document.getElementById(id);
const fields = ["temperature", "seed", "max_tokens"];
const NEAR = 160; // pixels from the page's end within which it is followed

let model = null;
let history = []; // messages of complete turns
let turn = null; // the latest
let running = null; // what stops it

const key = () => sessionStorage.getItem("key") ?? "";

// --- What the server offers ---------------------------------------------------------------------------------

async function connect() {
  try {
    [model] = await models(key());
  } catch (error) {
    explain(error);
    return;
  }
  explain(null);
  byId("model").textContent = model.id;
  byId("decoder").replaceChildren(...Object.keys(model.decoders).map((name) => new Option(name, name)));
  byId("decoder").value = model.default_decoder;
  offerParams();
}

function offerParams() {
  const params = Object.entries(model.decoders[byId("decoder").value]);
  byId("params").replaceChildren(...params.map(([name, value]) => field(name, value)));
  choose();
}

function field(name, value) {
  const label = element("label", "", `${name} `);
  const input = document.createElement(typeof value === "boolean" ? "select" : "input");
  if (typeof value === "boolean") {
    input.append(new Option(`default (${value})`, ""), new Option("true", "true"), new Option("false", "false"));
  } else {
    input.placeholder = value ?? "not set";
    input.autocomplete = "off";
    input.spellcheck = false;
  }
  input.name = name;
  label.append(input);
  return label;
}

// Numbers and booleans as such; the rest is text, and the server says what it thinks of it. A number that JavaScript
// cannot hold is text, too.
function typed(text) {
  if (text === "true" || text === "false") return text === "true";
  const number = /^-?\d/.test(text) ? Number(text) : NaN;
  const exact = Number.isInteger(number) ? Number.isSafeInteger(number) : Number.isFinite(number);
  return exact ? number : text;
}

function given() {
  const inputs = [...fields.map((id) => [id, byId(id)]), ...paramInputs().map((input) => [input.name, input])];
  const filled = inputs.map(([name, input]) => [name, input.value.trim()]).filter(([, text]) => text);
  return Object.fromEntries(filled.map(([name, text]) => [name, typed(text)]));
}

const paramInputs = () => [...byId("params").querySelectorAll("input, select")];

function choose() {
  const chosen = Object.entries(given()).map(([name, value]) => `${name} ${value}`);
  byId("chosen").textContent = [byId("decoder").value, ...chosen].join(", ");
}

// --- Asking -------------------------------------------------------------------------------------------------

async function ask(question) {
  if (!model) await connect();
  if (!model) return;
  turn?.reveal();
  explain(null);
  byId("prompt").value = "";
  grow();
  byId("spoken").replaceChildren();
  byId("welcome").open = false;
  const mine = new Turn(question, byId("pace").value === "calm", say);
  turn = mine;
  byId("turns").append(mine.root);
  follow(true);
  const control = new AbortController();
  busy(control);
  const system = byId("system").value.trim();
  const user = { role: "user", content: question };
  const body = {
    model: model.id,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...(byId("memory").checked ? history : []), user],
    stream: true,
    stream_options: { include_usage: true, include_lanes: true },
    decoder: byId("decoder").value,
    ...given(),
  };
  let failure = null;
  try {
    for await (const chunk of chunks(body, key(), control.signal)) mine.take(chunk);
  } catch (error) {
    failure = error;
  }
  if (!mine.root.isConnected) return; // a new chat has begun
  busy(null);
  const stopped = failure?.name === "AbortError";
  if (failure && !mine.text) {
    takeBack(mine, question);
  } else {
    history.push(user, { role: "assistant", content: mine.text });
    mine.end(stopped ? "Stopped." : failure?.message);
  }
  if (failure && !stopped) explain(failure);
}

// There is no answer: the question is there again, to be changed or sent once more.
function takeBack(failed, question) {
  failed.reveal();
  failed.root.remove();
  turn = null;
  if (!byId("prompt").value) byId("prompt").value = question;
  grow();
}

function say(text) {
  if (text.trim()) byId("spoken").append(element("p", "", text));
}

function explain(error) {
  byId("error").textContent = error?.message ?? "";
  byId("door").hidden = error?.status !== 401;
  if (error?.status === 401) byId("key").focus();
}

function busy(control) {
  running = control;
  if (document.activeElement === byId("stop")) byId("prompt").focus();
  byId("stop").hidden = !control;
  byId("send").setAttribute("aria-disabled", String(Boolean(control)));
}

function stop() {
  if (running) running.abort();
  else turn?.reveal();
}

function submit() {
  const question = byId("prompt").value.trim();
  if (question && !running) ask(question);
}

function startOver() {
  running?.abort();
  turn?.reveal();
  byId("turns").replaceChildren();
  busy(null);
  [history, turn] = [[], null];
  explain(null);
  byId("welcome").open = true;
  byId("prompt").focus();
}

// --- The page -----------------------------------------------------------------------------------------------

function grow() {
  const { style } = byId("prompt");
  style.height = "auto";
  style.height = `${byId("prompt").scrollHeight + 2}px`;
}

function follow(always = false) {
  if (!turn) return;
  const page = document.scrollingElement;
  if (always || page.scrollHeight - page.scrollTop - page.clientHeight < NEAR) page.scrollTop = page.scrollHeight;
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
byId("prompt").addEventListener("input", grow);
byId("door").addEventListener("submit", async (event) => {
  event.preventDefault();
  sessionStorage.setItem("key", byId("key").value.trim());
  await connect();
  if (model) byId("prompt").focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
});
byId("stop").addEventListener("click", stop);
byId("new").addEventListener("click", startOver);
byId("decoder").addEventListener("change", offerParams);
byId("settings").addEventListener("input", choose);
for (const example of document.querySelectorAll(".examples button")) {
  example.addEventListener("click", () => {
    startOver();
    ask(example.textContent);
  });
}
new ResizeObserver(() => follow()).observe(byId("turns"));
if (matchMedia("(prefers-reduced-motion: reduce)").matches) byId("pace").value = "live";
connect();
