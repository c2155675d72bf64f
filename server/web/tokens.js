// The tokens of an answer one by one: which step wrote each, in which lane, and how sure the model was. A pointer, a
// finger or the arrow keys choose one.

import { HUES, element } from "./canvas.js";

const percent = (share) => `${(100 * share).toFixed(share < 0.9995 ? 1 : 2)} %`;

export class Tokens {
  // `caption` shows what is known of the chosen token.
  constructor(list, caption) {
    this.list = list;
    this.caption = caption;
    list.addEventListener("pointerover", (event) => this.choose(event.target));
    list.addEventListener("click", (event) => this.choose(event.target));
    list.addEventListener("keydown", (event) => this.move(event));
    list.addEventListener("focus", () => this.choose(this.chosen ?? list.firstElementChild));
  }

  // `confidences` are those of the first tokens, as far as they are known.
  show(canvas, confidences) {
    const origins = canvas.origins();
    const made = [];
    for (let position = 0; origins.get(position)?.text; position++) {
      made.push(this.token(position, origins.get(position), canvas.steps.length, confidences[position]));
    }
    this.chosen = null;
    this.list.replaceChildren(...made);
  }

  token(position, { text, index, lane }, steps, confidence) {
    const made = element("span", lane ? `token hue${lane.id % HUES}` : "token ahead", text);
    made.id = `token-${(made.number = Tokens.count++)}`;
    made.role = "option";
    made.about = [
      `${JSON.stringify(text)}`,
      `step ${index + 1} of ${steps}`,
      lane ? `lane ${lane.id} (${lane.role})` : "ahead of the lanes",
      ...(confidence === undefined ? [] : [`confidence ${percent(confidence)}`]),
    ].join(" \u00b7 ");
    made.ariaLabel = made.about;
    if (confidence < 0.9) made.classList.add("unsure");
    return made;
  }

  choose(token) {
    if (!token?.about) return;
    this.chosen?.removeAttribute("aria-selected");
    this.chosen = token;
    token.ariaSelected = "true";
    this.list.setAttribute("aria-activedescendant", token.id);
    this.caption.textContent = token.about;
  }

  move(event) {
    const { firstElementChild: first, lastElementChild: last } = this.list;
    const now = this.chosen ?? first;
    const to = { ArrowLeft: now?.previousElementSibling, ArrowRight: now?.nextElementSibling, Home: first, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.choose(to);
  }
}
Tokens.count = 0; // ids are unique in the page
