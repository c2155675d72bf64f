// A race: one prompt, several decoders at once, each step shown as it comes. Afterwards the same race can be seen again in
// slow motion, from the times at which its steps came.

import { Canvas, count, element } from "./canvas.js";
import { chunks } from "./stream.js";

const RACERS = {
  llada: "LLaDA\u2019s sampler: blocks, one token a forward",
  "fast-dllm": "Fast-dLLM: blocks, every token it is sure of",
  asynclane: "Lanes: sentences side by side",
};
const MOST_TOKENS = 96;
const SLOW_MS = 4_000; // for the fastest in slow motion,
const MOST_SLOW_MS = 20_000; // unless the slowest would take longer than this
const FRAME_MS = 50; // between two looks at the race, which shall not slow it down

class Racer {
  constructor(decoder) {
    const root = document.getElementById("racer").content.firstElementChild.cloneNode(true);
    const part = (name) => root.querySelector(name);
    this.decoder = decoder;
    this.root = root;
    this.numbers = { forwards: part(".forwards"), rate: part(".rate"), time: part(".time") };
    this.place = part(".place");
    this.text = part(".canvas");
    part("h3").textContent = decoder;
    part(".about").textContent = RACERS[decoder];
    root.setAttribute("aria-label", decoder);
    this.clear();
  }

  clear() {
    this.canvas = new Canvas(this.text, document.createElementNS("http://www.w3.org/2000/svg", "svg"));
    this.moments = []; // of each step: when it came, and the tokens by then
    this.tokens = 0;
    this.forwards = 0;
    this.shown = null;
    this.to = null; // when the answer was complete
    this.failure = "";
    this.place.textContent = "";
    this.text.replaceChildren();
    for (const number of Object.values(this.numbers)) number.textContent = "\u2013";
  }

  take(chunk, at) {
    if (chunk.lanes) {
      this.canvas.add(chunk.lanes);
      this.tokens += chunk.lanes.commits.filter((commit) => commit.text).length;
      this.moments.push({ at, tokens: this.tokens });
    }
    if (chunk.usage) {
      this.tokens = chunk.usage.completion_tokens;
      this.forwards = chunk.usage.completion_tokens_details.forwards;
    }
  }

  end(at, failure = "") {
    this.to = at;
    this.failure = failure;
  }

  // The state at a time of the race.
  show(at) {
    const over = this.to !== null && at >= this.to;
    const steps = over ? this.moments.length : this.moments.findLastIndex((moment) => moment.at <= at) + 1;
    const seconds = (over ? this.to : at) / 1000;
    const tokens = over ? this.tokens : (this.moments[steps - 1]?.tokens ?? 0);
    this.numbers.forwards.textContent = over && this.forwards ? this.forwards : steps;
    this.numbers.rate.textContent = seconds ? Math.round(tokens / seconds) : 0;
    this.numbers.time.textContent = `${seconds.toFixed(2)} s`;
    if (over && this.failure) this.place.textContent = this.failure;
    this.place.hidden = !over;
    const state = `${steps} ${over}`;
    if (state === this.shown) return;
    this.shown = state;
    if (steps) this.canvas.show(steps - 1, over);
    else this.text.replaceChildren();
    this.text.scrollTop = over ? 0 : this.text.scrollHeight; // where it is low
    this.root.classList.toggle("over", over);
  }
}

export class Race {
  // `say` speaks text to screen readers; `changed(running)` is called when the race begins and ends.
  constructor(root, { say, changed }) {
    const part = (name) => root.querySelector(name);
    this.root = root;
    this.say = say;
    this.changed = changed;
    this.result = part(".result");
    this.slowly = part(".slowly");
    this.racers = [];
    this.control = null;
    this.timer = null;
    this.slowly.addEventListener("click", () => this.again());
  }

  // The decoders that take part. There is no race of one.
  enter(decoders) {
    const names = Object.keys(RACERS).filter((name) => decoders.includes(name));
    this.root.hidden = names.length < 2;
    this.racers = names.map((name) => new Racer(name));
    this.root.querySelector(".racers").replaceChildren(...this.racers.map((racer) => racer.root));
  }

  async run(model, prompt, key) {
    this.stop();
    clearTimeout(this.timer);
    const control = new AbortController();
    this.control = control;
    this.result.textContent = "";
    this.slowly.hidden = true;
    for (const racer of this.racers) racer.clear();
    this.changed(true);
    const from = performance.now();
    this.play(() => performance.now() - from, Infinity);
    const body = { model, messages: [{ role: "user", content: prompt }], max_tokens: MOST_TOKENS, stream: true };
    const options = { include_usage: true, include_lanes: true };
    await Promise.all(this.racers.map(async (racer) => {
      let failure = "";
      try {
        const wanted = { ...body, stream_options: options, decoder: racer.decoder };
        for await (const chunk of chunks(wanted, key, control.signal)) racer.take(chunk, performance.now() - from);
      } catch (error) {
        failure = error.name === "AbortError" ? "Stopped" : error.message;
      }
      if (this.control === control) racer.end(performance.now() - from, failure);
    }));
    if (this.control !== control) return; // another race has begun
    this.control = null;
    this.finish();
    this.changed(false);
    this.rank();
  }

  stop() {
    this.control?.abort();
  }

  // The same race in slow motion; its end, if it is shown already.
  again() {
    if (this.timer !== null) {
      this.finish();
      return;
    }
    const times = this.racers.map((racer) => racer.to);
    const length = Math.max(...times);
    const factor = Math.max(1, Math.min(SLOW_MS / Math.min(...times), MOST_SLOW_MS / length));
    const from = performance.now();
    this.slowly.textContent = "To the end";
    this.play(() => (performance.now() - from) / factor, length);
  }

  // Shows the time that `clock` gives, again and again until `length`.
  play(clock, length) {
    const at = clock();
    this.show(at);
    if (at < length) this.timer = setTimeout(() => this.play(clock, length), FRAME_MS);
    else this.finish();
  }

  finish() {
    clearTimeout(this.timer);
    this.timer = null;
    this.slowly.textContent = "In slow motion";
    this.show(Infinity);
  }

  show(at) {
    for (const racer of this.racers) racer.show(at);
  }

  rank() {
    const done = this.racers.filter((racer) => !racer.failure).sort((one, other) => one.to - other.to);
    this.slowly.hidden = !done.length;
    done.forEach((racer, index) => {
      racer.place.textContent = ["1st", "2nd", "3rd"][index];
      racer.place.classList.toggle("first", index === 0);
    });
    if (done.length < 2) return;
    const times = done.map(({ decoder, forwards, to }) => `${decoder} ${count(forwards, "forward")} in ${(to / 1000).toFixed(2)} s`);
    this.result.textContent = `${times.join(", ")}.`;
    this.say(this.result.textContent);
    this.result.parentElement.scrollIntoView({ block: "nearest" });
  }
}
