// One question with its answer: takes the chunks as they come, shows the canvas at a pace that eyes can follow, then
// the text. The text is what the server sent, set as text and never as markup.

import { Canvas, element } from "./canvas.js";

const CALM_MS = 450; // between two steps, while few are waiting;
const CATCH_UP_MS = 4000; // all that wait are shown within this time
const FENCE = /(```[^]*?(?:```(?:\n|$)|$))/;
const SENTENCE = /^[^]*(?:[.!?\u3002\uff01\uff1f\u061f\u0964]\s|\n)/;

export class Turn {
  // `say` speaks text to screen readers.
  constructor(question, calm, say) {
    const root = document.getElementById("turn").content.firstElementChild.cloneNode(true);
    const part = (name) => root.querySelector(name);
    this.root = root;
    this.answer = part(".answer");
    this.note = part(".note");
    this.caption = part(".caption");
    this.speed = part(".speed");
    this.play = part(".play");
    this.slider = part("input");
    this.canvas = new Canvas(part(".canvas"), part("svg"));
    this.calm = calm;
    this.say = say;
    this.said = 0; // characters
    this.text = "";
    this.shown = -1; // the step on the canvas
    this.timer = null;
    this.writing = true;
    this.meter = { from: performance.now(), first: null, tokens: 0 };
    part(".question").textContent = question;
    this.slider.addEventListener("input", () => this.pick(Number(this.slider.value)));
    this.play.addEventListener("click", () => this.replay());
    part("svg").addEventListener("click", (event) => {
      if (!this.writing) this.pick(this.canvas.stepAt(event.clientY - part("svg").getBoundingClientRect().top));
    });
  }

  take(chunk) {
    const text = chunk.choices[0]?.delta.content;
    if (text) {
      this.meter.first ??= performance.now();
      this.text += text;
      this.speak();
    }
    if (chunk.choices[0]?.finish_reason === "length") this.note.textContent = "Cut off at the most tokens allowed.";
    if (chunk.usage) this.meter.usage = chunk.usage;
    if (!chunk.lanes) return;
    this.canvas.add(chunk.lanes);
    this.meter.tokens += chunk.lanes.commits.filter((commit) => commit.text).length;
    this.measure();
    if (this.timer === null) this.next();
  }

  // No more chunks come.
  end(note = "") {
    this.meter.to = performance.now();
    this.writing = false;
    if (note) this.note.textContent = note;
    this.say(this.text.slice(this.said));
    this.say(note);
    this.measure();
    this.slider.max = this.canvas.steps.length;
    if (this.timer === null) this.reveal();
  }

  // The text, whatever of the canvas has not been shown yet.
  reveal() {
    clearTimeout(this.timer);
    this.timer = null;
    this.answer.replaceChildren(
      ...this.text.split(FENCE).map((part, index) => (index % 2 ? element("code", "block", part) : part)),
    );
    this.root.querySelector(".replay").hidden = !this.canvas.steps.length;
    this.pick(this.canvas.steps.length);
  }

  // A step; after the last one comes the text.
  pick(index) {
    clearTimeout(this.timer);
    this.timer = null;
    this.shown = index;
    this.play.textContent = "Replay";
    const done = index >= this.canvas.steps.length;
    this.answer.classList.toggle("unseen", !done);
    if (done) this.canvas.hide();
    else this.draw();
    this.slider.value = index;
    this.caption.textContent = done ? "" : this.canvas.caption(index);
    this.slider.setAttribute("aria-valuetext", done ? "The answer" : this.canvas.caption(index));
  }

  replay() {
    if (this.timer !== null) {
      this.pick(this.shown);
      return;
    }
    this.answer.classList.add("unseen");
    this.shown = -1;
    this.play.textContent = "Pause";
    this.next(true);
  }

  next(calm = this.calm) {
    const { length } = this.canvas.steps;
    this.timer = null;
    if (this.shown + 1 >= length) {
      if (!this.writing) this.reveal();
      return;
    }
    this.shown = calm ? this.shown + 1 : length - 1;
    this.draw();
    this.slider.value = this.shown;
    this.caption.textContent = this.canvas.caption(this.shown);
    const pause = calm ? Math.min(CALM_MS, CATCH_UP_MS / (length - this.shown)) : 0;
    this.timer = setTimeout(() => this.next(calm), Math.max(pause, 16));
  }

  draw() {
    this.canvas.show(this.shown);
    this.canvas.text.classList.toggle("code", this.canvas.text.textContent.includes("```"));
    const { scrollHeight } = this.canvas.score.parentElement;
    this.canvas.score.parentElement.scrollTop = (scrollHeight * this.shown) / this.canvas.steps.length - 40;
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

const count = (number, name) => `${number} ${name}${number === 1 ? "" : "s"}`;
