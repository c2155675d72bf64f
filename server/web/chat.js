// The page: a race of decoders first, then the conversation.

import { sent } from "./calls.js";
import { element } from "./canvas.js";
import { forget, forgetAll, keep, kept } from "./chats.js";
import { copy, markdown } from "./markdown.js";
import { Race } from "./race.js";
import { fromAddress, linkTo } from "./replay.js";
import { Settings } from "./settings.js";
import { chunks, description, models } from "./stream.js";
import { Turn } from "./turn.js";

const byId = (id) => document.getElementById(id);
const NEAR = 160; // pixels from the page's end within which it is followed
const EXAMPLES = {
  "A function": "Write a Python function `count_even(numbers)` that returns the number of even numbers in a list.",
  "A sum in words": "Ben has 14 eggs. Then he finds 9 eggs at the farm. How many eggs does Ben have now?",
  "A list": "Reverse this list: 12, 45, 7, 98, 3, 27, 64, 50.",
  "A capital": "What is the capital of France?",
};
// What an empty chat offers: the embedded models answer these rightly, as tests/e2e/test_page.py checks.
const QUESTIONS = {
  "The capital of France": EXAMPLES["A capital"],
  "A short story": "Tell me a short story about Mia and a fox at the park.",
  "A word problem": EXAMPLES["A sum in words"],
  "A Python function": EXAMPLES["A function"],
};

let model = null;
let turns = []; // of this chat
let id = null; // of this chat, among those that are kept
let running = null; // what stops the answer that is being written
let edited = null; // the turn whose question is being edited
let following = true; // the page's end is kept in view, until the reader scrolls up
let seen = 0; // how far the page was scrolled at last

const key = () => sessionStorage.getItem("key") ?? "";
const settings = new Settings(async () => {
  const { components, "x-decoder-words": words } = await description(key());
  return { properties: components.schemas.ChatCompletionRequest.properties, words };
});
const race = new Race(byId("race"), {
  say,
  changed: (runs) => {
    byId("race").querySelector(".go").textContent = runs ? "Stop the race" : "Start the race";
  },
});

async function connect() {
  try {
    [model] = await models(key());
  } catch (error) {
    explain(error);
    return;
  }
  explain(null);
  byId("model").textContent = model.id;
  settings.enter(model);
  race.enter(Object.keys(model.decoders));
}

// --- Questions ----------------------------------------------------------------------------------------------

// Sends a question, or the `results` of the latest answer's calls.
async function ask(question, results = null) {
  if (!model) await connect();
  if (!model) return;
  let tools;
  try {
    tools = settings.tools();
  } catch (error) {
    explain(error);
    return;
  }
  if (location.hash) startOver(); // a replay is no part of a conversation
  if (edited) drop(turns.indexOf(edited));
  edit(null);
  race.stop();
  explain(null);
  if (!results) byId("prompt").value = "";
  grow();
  byId("spoken").replaceChildren();
  welcome(false);
  turns.at(-1)?.reveal();
  const before = results || byId("memory").checked ? turns.flatMap(messages) : [];
  const mine = begin(shownTurn(question, { say, results, slow: byId("pace").value === "slow" }));
  turns.push(mine);
  offerAgain();
  follow(true);
  const control = new AbortController();
  busy(control);
  const system = byId("system").value.trim();
  const body = {
    model: model.id,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...before, ...asked(mine)],
    stream: true,
    stream_options: { include_usage: true },
    decoder: byId("decoder").value,
    ...settings.given(),
    ...tools,
  };
  mine.decoder = body.decoder;
  let failure = null;
  try {
    for await (const chunk of answered(body, control.signal)) mine.take(chunk);
  } catch (error) {
    failure = error;
  }
  if (!mine.root.isConnected) return; // a new chat has begun
  busy(null);
  const stopped = failure?.name === "AbortError";
  if (failure && mine.empty) {
    takeBack(mine);
  } else {
    mine.end(stopped ? "Stopped." : failure?.message);
    mine.share.hidden = mine.calls.length > 0 || !mine.canvas.steps.length; // a replay has steps, and no calls
    save();
  }
  if (failure && !stopped) explain(failure);
}

// The chunks of an answer, with its lanes, and with the confidence of each token, where model and decoder have them.
async function* answered(body, signal) {
  const lanes = { ...body, stream_options: { ...body.stream_options, include_lanes: true } };
  for (const wanted of [{ ...lanes, logprobs: true }, lanes]) {
    try {
      yield* chunks(wanted, key(), signal);
      return;
    } catch (error) {
      if (!/excludes logprobs|^(logprobs|include_lanes) is not for this model/.test(error.message)) throw error;
    }
  }
  yield* chunks(body, key(), signal);
}

const asked = ({ question, results }) => results ?? [{ role: "user", content: question }];

function messages(turn) {
  const calls = turn.calls.map(sent);
  const answer = calls.length ? { content: turn.text || null, tool_calls: calls } : { content: turn.text };
  return [...asked(turn), { role: "assistant", ...answer }];
}

function shownTurn(question, options) {
  const send = (results) => {
    if (!running) ask(results.map(({ content }) => content).join("\n"), results);
  };
  return new Turn(question, { render: markdown, send, ...options });
}

// A turn on the page, with what can be done with it.
function begin(turn) {
  offerCopy(turn);
  turn.again = turn.offer("Regenerate", "Answer again with the settings as they are now; at temperature 0 the same comes again", () => regenerate(turn));
  turn.edit = turn.offer("Edit", "Change the question; what came after it goes", () => edit(turn));
  turn.edit.hidden = Boolean(turn.results);
  turn.share = turn.offer("Share replay", "Copy a link that shows how this answer was written", (button) => share(turn, button));
  byId("turns").append(turn.root);
  return turn;
}

const offerCopy = (turn) => turn.offer("Copy", "Copy the answer as Markdown", (button) => copy(turn.text, button));

// Only the latest answer can be written again.
function offerAgain() {
  for (const turn of turns) {
    turn.again.hidden = turn !== turns.at(-1);
    turn.latest(turn === turns.at(-1));
  }
}

function regenerate(turn) {
  if (running) return;
  drop(turns.indexOf(turn));
  ask(turn.question, turn.results);
}

// Removes the turn of this number, and all after it.
function drop(number) {
  for (const turn of turns.splice(Math.max(number, 0))) turn.root.remove();
}

function edit(turn) {
  if (turn && running) return;
  if (turn || edited) byId("prompt").value = turn?.question ?? "";
  edited = turn;
  byId("editing").hidden = !turn;
  grow();
  if (turn) byId("prompt").focus();
}

// There is no answer: the question is there again, to be changed or sent once more.
function takeBack(failed) {
  drop(turns.indexOf(failed));
  offerAgain();
  save();
  if (!byId("prompt").value && !failed.results) byId("prompt").value = failed.question;
  welcome(!turns.length);
  grow();
}

async function share(turn, button) {
  const { question, text, decoder, confidences, canvas } = turn;
  const link = await linkTo({
    ...{ model: model.id, decoder, question, text, note: turn.note.textContent, speed: turn.speed.textContent },
    ...{ confidences: confidences.map((share) => Math.round(share * 1e4) / 1e4), steps: canvas.steps },
  });
  if (link) copy(link, button);
  else button.textContent = "Too long for a link";
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
  else if (edited) edit(null);
  else turns.at(-1)?.reveal();
}

function submit() {
  const question = byId("prompt").value.trim();
  if (question && !running) ask(question);
}

// --- Chats --------------------------------------------------------------------------------------------------

function startOver() {
  running?.abort();
  byId("turns").replaceChildren();
  byId("spoken").replaceChildren();
  busy(null);
  edit(null);
  [turns, id] = [[], null];
  explain(null);
  welcome(true);
  if (location.hash) history.replaceState(null, "", location.pathname + location.search);
  scrollTo(0, 0);
  focusPrompt();
}

function save() {
  id ??= crypto.getRandomValues(new Uint32Array(2)).join("-");
  const plain = turns.map(({ question, results, reasoning, text, calls, note, speed }) => ({
    ...{ question, results, reasoning, text, calls, note: note.textContent, speed: speed.textContent },
  }));
  if (plain.length) keep({ id, at: Date.now(), turns: plain });
  else forget(id);
}

function open(chat) {
  startOver();
  welcome(false);
  id = chat.id;
  turns = chat.turns.map((past) => {
    const turn = begin(shownTurn(past.question, { results: past.results }));
    turn.restore(past);
    turn.share.hidden = true; // its steps are gone
    return turn;
  });
  offerAgain();
  byId("chats").close();
  follow(true);
}

function showChats() {
  const chats = kept();
  byId("kept").replaceChildren(...chats.map((chat) => {
    const title = chat.turns[0].question;
    const opener = element("button", "opener", title.slice(0, 120));
    opener.append(element("small", "", new Date(chat.at).toLocaleString()));
    opener.addEventListener("click", () => open(chat));
    const remover = element("button", "", "Delete");
    remover.ariaLabel = `Delete the chat: ${title.slice(0, 60)}`;
    remover.addEventListener("click", () => {
      forget(chat.id);
      if (chat.id === id) id = null;
      showChats();
    });
    for (const button of [opener, remover]) button.type = "button";
    const item = element("li", "");
    item.append(opener, remover);
    return item;
  }));
  if (!chats.length) byId("kept").append(element("li", "about", "There are none so far."));
  byId("forget").hidden = !chats.length;
  if (!byId("chats").open) byId("chats").showModal();
}

// --- A replay in the address --------------------------------------------------------------------------------

async function showReplay() {
  let replay;
  try {
    replay = await fromAddress();
  } catch (error) {
    explain(error);
    return;
  }
  if (!replay) return;
  running?.abort();
  byId("turns").replaceChildren();
  [turns, id] = [[], null];
  welcome(false);
  const turn = new Turn(replay.question, { render: markdown });
  offerCopy(turn);
  byId("turns").append(element("p", "shared", `A replay that somebody shared: ${replay.model}, ${replay.decoder}.`), turn.root);
  for (const step of replay.steps) turn.canvas.add(step);
  turn.confidences = replay.confidences;
  turn.restore(replay);
  if (!matchMedia("(prefers-reduced-motion: reduce)").matches) turn.replay();
}

// --- The page -----------------------------------------------------------------------------------------------

// The race and the questions to begin with, which an empty chat shows.
function welcome(shown) {
  for (const name of ["welcome", "questions"]) byId(name).hidden = !shown;
}

// A button for each named prompt.
function offers(prompts, take) {
  return Object.entries(prompts).map(([name, prompt]) => {
    const button = element("button", "", name);
    Object.assign(button, { type: "button", title: prompt });
    button.addEventListener("click", () => take(prompt));
    return button;
  });
}

function grow() {
  const { style } = byId("prompt");
  style.height = "auto";
  style.height = `${byId("prompt").scrollHeight + 2}px`;
}

function follow(always = false) {
  if (always) following = true;
  if (!turns.length || !following) return;
  const page = document.scrollingElement;
  page.scrollTop = page.scrollHeight;
  seen = page.scrollTop;
}

// A reader who scrolls up is left there, and followed again from near the page's end.
function scrolled() {
  const { scrollTop, scrollHeight, clientHeight } = document.scrollingElement;
  if (scrollHeight - scrollTop - clientHeight < NEAR) following = true;
  else if (scrollTop < seen) following = false;
  seen = scrollTop;
}

// With a keyboard at hand; on a phone the screen's would cover the page.
function focusPrompt() {
  if (matchMedia("(pointer: fine)").matches) byId("prompt").focus({ preventScroll: true });
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
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  stop();
  race.stop();
});
byId("stop").addEventListener("click", stop);
byId("cancel").addEventListener("click", () => edit(null));
byId("new").addEventListener("click", startOver);
byId("show-chats").addEventListener("click", showChats);
byId("show-settings").addEventListener("click", () => settings.open());
byId("forget").addEventListener("click", () => {
  forgetAll();
  id = null;
  showChats();
});
for (const dialog of document.querySelectorAll("dialog")) {
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // beside it
  });
}
byId("race").querySelector(".start").addEventListener("submit", (event) => {
  event.preventDefault();
  if (race.control) race.stop();
  else if (model) race.run(model.id, byId("race-prompt").value.trim(), key());
});
byId("race").querySelector(".examples").append(...offers(EXAMPLES, (prompt) => {
  byId("race-prompt").value = prompt;
  if (model) race.run(model.id, prompt, key());
}));
byId("questions").append(...offers(QUESTIONS, (question) => {
  byId("prompt").value = question;
  submit();
}));
byId("race-prompt").value = Object.values(EXAMPLES)[0];
new ResizeObserver(() => follow()).observe(byId("turns"));
addEventListener("scroll", scrolled, { passive: true });
addEventListener("hashchange", showReplay);
focusPrompt();
connect().then(showReplay);
