// Draws what the steps of an answer did to its canvas: the text with its lanes as bands, and the score, in which each
// step is a line and each lane a bar.

export const HUES = 6; // of `chat.css`
const LINE = 10; // pixels of a step in the score
const DOES = { generate: "generates", refine: "refines" };
const FATES = { live: "", forked: " and forks", finished: " and is done", cancelled: " and is given up" };

export const count = (number, name) => `${number} ${name}${number === 1 ? "" : "s"}`;

const hue = (lane) => `hue${lane.id % HUES}`;
const laneAt = (step, position) => step.lanes.find((lane) => lane.start <= position && position < lane.end);

export class Canvas {
  constructor(text, score) {
    this.text = text;
    this.score = score;
    this.steps = [];
    this.forks = 0;
    this.width = 1; // positions that anything is known of
    this.now = this.draw("rect", { x: 0, height: 1, class: "now" });
  }

  add(step) {
    this.steps.push(step);
    this.forks += step.lanes.filter((lane) => lane.fate === "forked").length;
    const ends = [...step.lanes.map((lane) => lane.end), ...step.commits.map((commit) => commit.position + 1)];
    this.width = Math.max(this.width, ...ends);
    const rows = this.steps.length;
    this.score.setAttribute("viewBox", `0 0 ${this.width} ${rows}`);
    this.score.style.height = `${rows * LINE}px`;
    this.now.setAttribute("width", this.width);
    this.drawStep(rows - 1);
    this.score.setAttribute("aria-label", `Lanes over ${rows} steps, ${this.forks} forks`);
  }

  // The step that a height in the score belongs to.
  stepAt(pixels) {
    return Math.min(Math.max(Math.floor(pixels / LINE), 0), this.steps.length - 1);
  }

  caption(index) {
    const { lanes, commits } = this.steps[index];
    const filled = commits.filter((commit) => commit.text).length;
    const ahead = commits.filter((commit) => commit.text && !laneAt(this.steps[index], commit.position)).length;
    const does = lanes.map((lane) => `lane ${lane.id} ${DOES[lane.role]}${FATES[lane.fate]}`).join(", ");
    return `Step ${index + 1}: ${filled} filled${ahead ? `, ${ahead} ahead` : ""}${does ? `; ${does}` : ""}.`;
  }

  // What was written at each position at last: its text, the step that wrote it, and the lane, if it was in one.
  origins() {
    return new Map(
      this.steps.flatMap((step, index) =>
        step.commits.map(({ position, text }) => [position, { text, index, lane: laneAt(step, position) }]),
      ),
    );
  }

  // The canvas after a step; `bare` without what the step did. What stands and belongs to no lane is one piece of text,
  // however long it is.
  show(index, bare = false) {
    const step = bare ? { lanes: [], commits: [] } : this.steps[index];
    const filled = new Map(this.steps.slice(0, index + 1).flatMap((one) => one.commits).map((c) => [c.position, c.text]));
    const fresh = new Set(step.commits.map((commit) => commit.position));
    const end = Math.max(0, ...[...filled.keys()].map((at) => at + 1), ...step.lanes.map((lane) => lane.end));
    const pieces = [];
    let band = null;
    let plain = "";
    let ended = false;
    const flush = () => {
      if (plain) (band ?? { append: (text) => pieces.push(text) }).append(plain);
      plain = "";
    };
    for (let position = 0; position < end; position++) {
      const lane = laneAt(step, position);
      if (band?.lane !== lane) {
        flush();
        band = lane ? this.band(index, lane) : null;
        if (band) pieces.push(band);
      }
      const text = filled.get(position);
      const token = this.token(text, fresh.has(position), !lane, ended);
      ended ||= text === "";
      if (typeof token === "string") {
        plain += token;
      } else {
        flush();
        if (band) band.append(token);
        else pieces.push(token);
      }
    }
    flush();
    this.text.replaceChildren(...pieces);
    this.now.setAttribute("y", index);
  }

  hide() {
    this.text.replaceChildren();
    this.now.setAttribute("y", -1);
  }

  token(text, fresh, outside, ended) {
    if (text === undefined) return element("i", outside ? "open outside" : "open");
    if (text === "") return ended ? "" : element("i", "end", "\u220e");
    const looks = `fresh${outside ? " draft" : ""}${text.trim() ? "" : " blank"}`;
    return fresh ? element("b", looks, text) : text;
  }

  band(index, lane) {
    const band = element("span", `lane ${lane.role} ${hue(lane)}`);
    const forked = this.forkedAt(index, lane);
    band.lane = lane;
    band.classList.toggle("forked", forked);
    band.dataset.label = `${forked ? "\u21b3 " : ""}${lane.role} ${lane.id}`;
    return band;
  }

  // Whether the lane came into being by a fork in the step before.
  forkedAt(index, lane) {
    const before = this.steps[index - 1]?.lanes ?? [];
    const born = !before.some((one) => one.id === lane.id);
    return born && before.some((one) => one.id === lane.parent && one.fate === "forked");
  }

  drawStep(row) {
    const step = this.steps[row];
    for (const lane of step.lanes) {
      const refine = lane.role === "refine";
      const box = { x: lane.start, width: lane.end - lane.start, y: row + (refine ? 0.5 : 0.1), height: refine ? 0.4 : 0.8 };
      this.draw("rect", { ...box, class: `bar ${hue(lane)}` });
    }
    for (const { position, text } of step.commits) {
      const lane = laneAt(step, position);
      const half = !lane || lane.role === "refine";
      const box = { x: position, width: 1, y: row + (half ? 0.5 : 0.1), height: half ? 0.4 : 0.8 };
      this.draw("rect", { ...box, class: `${text ? "put" : "void"} ${lane ? hue(lane) : "draft"}` });
    }
    for (const lane of step.lanes.filter((one) => this.forkedAt(row, one))) {
      // A line of no length with round ends is a dot, whatever the scales of the two axes are.
      this.draw("path", { d: `M ${lane.start} ${row} v 0.5`, class: `stem ${hue(lane)}` });
      this.draw("path", { d: `M ${lane.start} ${row} v 0`, class: `fork ${hue(lane)}` });
    }
  }

  draw(name, attributes) {
    const shape = document.createElementNS(this.score.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) shape.setAttribute(key, value);
    this.score.append(shape);
    return shape;
  }
}

export function element(name, className, text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}
