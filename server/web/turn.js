// One question, or the results of calls, with its answer. While the answer is written, the canvas shows each step as it comes, or slower; then the
// text stands there, and the steps and the tokens can be looked at. Texts are set as text and never as markup.

import { addTo, form, lines, whole } from "./calls.js";
import { Canvas, count, element } from "./canvas.js";
import { Tokens } from "./tokens.js";

const SLOW_MS = 450; // between two steps in slow motion
const FENCE = /(```[^]*?(?:```(?:\n|$)|$))/;
const SENTENCE = /^[^]*(?:[.!?\u3002\uff01\uff1f\u061f\u0964]\s|\n)/;

export class Turn {
  // `say` speaks text to screen readers; `render` makes the nodes of an answer's text; `slow`: the steps come in slow
  // motion. `results` are the messages of the calls that this turn answers; `send` gets those of its own calls.
  constructor(question, { say = () => {}, render = plain, slow = false, results = null, send = () => {} } = {}) {
    const root = document.getElementById("turn").content.firstElementChild.cloneNode(true);
    const part = (name) => root.querySelector(name);
    this.root = root;
    this.question = question;
    this.results = results;
    this.send = send;
    this.reasoning = "";
    this.calls = [];
    this.thoughts = part(".reasoning");
    this.called = part(".calls");
    this.answer = part(".answer");
    this.note = part(".note");
    this.caption = part(".caption");
    this.speed = part(".speed");
    this.play = part(".play");
    this.slider = part("input");
    this.looker = part(".look");
    this.list = part(".tokens");
    this.actions = part(".actions");
    this.canvas = new Canvas(part(".canvas"), part("svg"));
    this.tokens = new Tokens(this.list, this.caption);
    this.say = say;
    this.render = render;
    this.slow = slow;
    this.said = 0; // characters
    this.text = "";
    this.confidences = []; // of the tokens of `text`
    this.shown = -1; // the step on the canvas
    this.timer = null; // of slow motion
    this.frame = null; // in which the newest step is drawn
    this.writing = true;
    this.meter = { from: performance.now(), first: null, tokens: 0 };
    part(".question").textContent = question;
    this.slider.addEventListener("input", () => this.pick(Number(this.slider.value)));
    this.play.addEventListener("click", () => this.replay());
    part("svg").addEventListener("click", (event) => {
      if (!this.writing) this.pick(this.canvas.stepAt(event.clientY - part("svg").getBoundingClientRect().top));
    });
    this.looker.addEventListener("click", () => this.look(this.list.hidden));
  }

  // Adds a button below the answer.
  offer(label, title, act) {
    const button = element("button", "", label);
    Object.assign(button, { type: "button", title });
    button.addEventListener("click", () => act(button));
    this.actions.append(button);
    return button;
  }

  take(chunk) {
    const choice = chunk.choices[0];
    const { content: text, reasoning_content: thought, tool_calls: calls } = choice?.delta ?? {};
    if (text || thought || calls) this.meter.first ??= performance.now();
    if (text) {
      this.text += text;
      this.speak();
    }
    if (thought) this.think(thought);
    addTo(this.calls, calls ?? []);
    for (const { logprob } of choice?.logprobs?.content ?? []) this.confidences.push(Math.exp(logprob));
    if (choice?.finish_reason === "length") this.note.textContent = "Cut off at the most tokens allowed.";
    if (chunk.usage) this.meter.usage = chunk.usage;
    if (!chunk.lanes) {
      if (text && !this.canvas.steps.length) this.answer.replaceChildren(...this.render(this.text)); // no lanes come
      return;
    }
    this.canvas.add(chunk.lanes);
    this.meter.tokens += chunk.lanes.commits.filter((commit) => commit.text).length;
    if (this.slow) this.timer ?? this.next();
    else this.frame ??= requestAnimationFrame(() => this.catchUp());
  }

  // No more chunks come.
  end(note = "") {
    this.meter.to = performance.now();
    this.writing = false;
    this.calls = note ? [] : this.calls.filter(whole); // those of an answer that broke off may go on
    if (note) this.note.textContent = note;
    this.say(this.text.slice(this.said));
    for (const { name } of this.calls) this.say(`The model calls ${name}.`);
    this.say(note);
    this.measure();
    if (this.timer === null) this.reveal();
  }

  // An answer of earlier, without its steps.
  restore({ text, note, speed, reasoning = "", calls = [] }) {
    this.writing = false;
    this.text = text;
    this.calls = calls;
    if (reasoning) this.think(reasoning);
    this.note.textContent = note;
    this.speed.textContent = speed;
    this.reveal();
  }

  // The text, whatever of the canvas has not been shown yet.
  reveal() {
    const { length } = this.canvas.steps;
    this.answer.replaceChildren(...this.render(this.text));
    this.called.replaceChildren(...lines(this.calls));
    if (this.calls.length && !this.writing) this.called.append(form(this.calls, this.send));
    this.called.hidden = !this.calls.length;
    this.slider.max = length;
    this.root.querySelector(".replay").hidden = !length;
    this.actions.hidden = false;
    this.pick(length);
  }

  think(text) {
    this.reasoning += text;
    this.thoughts.hidden = false;
    this.thoughts.lastElementChild.textContent = this.reasoning;
  }

  get empty() {
    return !(this.text || this.reasoning || this.calls.length);
  }

  // Results may be sent for the latest answer alone.
  latest(last) {
    this.called.classList.toggle("done", !last);
  }

  // A step; after the last one comes the text.
  pick(index) {
    this.pause();
    this.look(false);
    const done = index >= this.canvas.steps.length;
    this.shown = index;
    this.answer.classList.toggle("unseen", !done);
    if (done) this.canvas.hide();
    else this.draw();
    this.slider.value = index;
    this.slider.setAttribute("aria-valuetext", done ? "The answer" : this.canvas.caption(index));
    if (done) this.caption.textContent = "";
  }

  // The tokens instead of the text.
  look(on) {
    this.list.hidden = !on;
    this.looker.setAttribute("aria-pressed", String(on));
    if (!on) return;
    this.pause();
    this.tokens.show(this.canvas, this.confidences);
    this.list.classList.toggle("code", this.text.includes("```"));
    this.answer.classList.add("unseen");
    this.canvas.hide();
    this.caption.textContent = "Point at a token, or use the arrow keys.";
    this.list.focus({ preventScroll: true });
  }

  pause() {
    clearTimeout(this.timer);
    cancelAnimationFrame(this.frame);
    [this.timer, this.frame] = [null, null];
    this.play.textContent = "Replay";
  }

  replay() {
    if (this.timer !== null) {
      this.pick(this.shown);
      return;
    }
    this.look(false);
    this.answer.classList.add("unseen");
    this.shown = -1;
    this.play.textContent = "Pause";
    this.next();
  }

  // The next step in slow motion.
  next() {
    this.timer = null;
    if (this.shown + 1 < this.canvas.steps.length) {
      this.shown++;
      this.draw();
      this.timer = setTimeout(() => this.next(), SLOW_MS);
    } else if (!this.writing) {
      this.reveal();
    }
  }

  // The newest step, in real time.
  catchUp() {
    this.frame = null;
    this.shown = this.canvas.steps.length - 1;
    this.draw();
  }

  draw() {
    this.canvas.show(this.shown);
    this.canvas.text.classList.toggle("code", this.canvas.text.textContent.includes("```"));
    this.slider.value = this.shown;
    this.caption.textContent = this.canvas.caption(this.shown);
    if (this.writing) this.measure();
    const frame = this.canvas.score.parentElement;
    frame.scrollTop = (frame.scrollHeight * this.shown) / this.canvas.steps.length - 40;
  }

  // Screen readers hear whole sentences, as soon as they are final.
  speak() {
    const whole = this.text.slice(this.said).match(SENTENCE)?.[0] ?? "";
    this.said += whole.length;
    this.say(whole);
  }

  measure() {
    const { from, to = performance.now(), first, usage } = this.meter;
    const tokens = usage?.completion_tokens ?? this.meter.tokens;
    const forwards = usage?.completion_tokens_details.forwards ?? this.canvas.steps.length;
    const seconds = (to - from) / 1000;
    const facts = [
      count(tokens, "token"),
      count(forwards, "forward"),
      forwards && `${(tokens / forwards).toFixed(1)} tokens per forward`,
      `${Math.round(tokens / seconds)} tokens/s`,
      first && `first text after ${Math.round(first - from)} ms`,
      count(this.canvas.forks, "fork"),
    ];
    this.speed.textContent = forwards ? facts.filter(Boolean).join(" \u00b7 ") : "";
  }
}

// Text as it is, with fences set apart.
const plain = (text) => text.split(FENCE).map((part, index) => (index % 2 ? element("code", "block", part) : part));
