// The settings of a request: sampling, a decoder and its parameters, each with a sentence and its range. The server's
// document says which values a parameter may have.

import { element } from "./canvas.js";
import { ABOUT } from "./params.js";

const SAMPLING = { temperature: "0", seed: "any", max_tokens: "what fits" }; // with what an empty field means

const byId = (id) => document.getElementById(id);

export class Settings {
  // `ranges()` fetches the properties of a request, and the words that each decoder takes, from the server's document.
  constructor(ranges) {
    this.ranges = ranges;
    this.properties = null;
    this.words = {};
    byId("decoder").addEventListener("change", () => this.offer());
    byId("settings").addEventListener("input", () => this.choose());
  }

  // The decoders of a model, with their parameters' defaults.
  enter(model) {
    this.decoders = model.decoders;
    byId("decoder").replaceChildren(...Object.keys(model.decoders).map((name) => new Option(name, name)));
    byId("decoder").value = model.default_decoder;
    byId("decoder-about").textContent = ABOUT.decoder;
    byId("sampling").replaceChildren(...Object.entries(SAMPLING).map(([name, empty]) => this.field(name, empty)));
    this.offer();
  }

  async open() {
    byId("settings").showModal();
    if (this.properties) return;
    const { properties, words } = await this.ranges().catch(() => ({})); // without it there are no ranges
    [this.properties, this.words] = [properties, words ?? {}];
    for (const note of byId("settings").querySelectorAll("[data-range]")) this.describe(note);
  }

  offer() {
    const params = Object.entries(this.decoders[byId("decoder").value]);
    byId("params").replaceChildren(...params.map(([name, value]) => this.field(name, value)));
    this.choose();
  }

  field(name, value) {
    const label = element("label", "", name);
    const input = document.createElement(typeof value === "boolean" ? "select" : "input");
    if (typeof value === "boolean") {
      input.append(new Option(`default (${value})`, ""), new Option("true", "true"), new Option("false", "false"));
    } else {
      input.placeholder = value ?? "not set";
      input.autocomplete = "off";
      input.spellcheck = false;
    }
    input.name = input.id = name;
    label.htmlFor = name;
    const about = element("p", "about", `${ABOUT[name] ?? ""} `);
    about.id = `${name}-about`;
    const range = element("span", "range");
    range.dataset.range = name;
    about.append(range);
    const words = element("datalist", "");
    words.id = `${name}-words`;
    if (input.tagName === "INPUT") input.setAttribute("list", words.id);
    input.setAttribute("aria-describedby", about.id);
    input.addEventListener("input", () => this.check(input));
    const made = element("div", "field");
    made.append(label, input, about, words);
    this.describe(range);
    return made;
  }

  // Writes the values that a parameter may have, as far as they are known, and offers those that are words.
  describe(note) {
    const name = note.dataset.range;
    const { numbers, words } = this.allowed(name);
    const said = [...numbers.map((part) => bounds(low(part), high(part))), ...words];
    note.textContent = said.length ? `${said.join(", ")}.` : "";
    const field = note.closest(".field");
    field.querySelector("datalist").replaceChildren(...words.map((word) => new Option(word)));
    this.check(field.querySelector("input, select"));
  }

  // The ranges of numbers and the words that a parameter may have, with this decoder.
  allowed(name) {
    const parts = this.properties?.[name]?.anyOf ?? [this.properties?.[name] ?? {}];
    const numbers = parts.filter((part) => low(part) !== undefined);
    const words = this.words[byId("decoder").value]?.[name] ?? parts.flatMap((part) => part.enum ?? []);
    return { numbers, words: words.filter((word) => word !== null) };
  }

  // Marks a value that the server would refuse.
  check(input) {
    const { numbers, words } = this.allowed(input.name);
    const value = typed(input.value.trim());
    const known = numbers.length || words.length;
    const right = value === "" || !known || words.includes(value) || numbers.some((part) => within(part, value));
    input.setAttribute("aria-invalid", String(!right));
  }

  // What was filled in.
  given() {
    const inputs = [...byId("settings").querySelectorAll(".fields :is(input, select)")];
    const filled = inputs.map((input) => [input.name, input.value.trim()]).filter(([, text]) => text);
    return Object.fromEntries(filled.map(([name, text]) => [name, typed(text)]));
  }

  // The functions that the model may call, each with or without `type: "function"` around it.
  tools() {
    const text = byId("tools").value.trim();
    if (!text) return {};
    try {
      return { tools: JSON.parse(text).map((tool) => (tool.function ? tool : { type: "function", function: tool })) };
    } catch {
      throw new Error("The tools in the settings are not a JSON list of functions.");
    }
  }

  choose() {
    const chosen = Object.entries(this.given()).map(([name, value]) => `${name} ${value}`);
    if (byId("tools").value.trim()) chosen.push("tools");
    byId("chosen").textContent = [byId("decoder").value, ...chosen].join(", ");
  }
}

const low = (part) => part.minimum ?? part.exclusiveMinimum;
const high = (part) => part.maximum ?? part.exclusiveMaximum;
const within = (part, value) =>
  typeof value === "number" && (part.type !== "integer" || Number.isInteger(value)) &&
  !(value < part.minimum || value > part.maximum || value <= part.exclusiveMinimum || value >= part.exclusiveMaximum);
const bounds = (low, high) =>
  low < -1e9 ? "Any whole number" : high === undefined || high > 1e9 ? `${low} or more` : `${low} to ${high}`;

// Numbers and booleans as such; the rest is text, and the server says what it thinks of it. A number that JavaScript
// cannot hold is text, too.
function typed(text) {
  if (text === "true" || text === "false") return text === "true";
  const number = /^-?\d/.test(text) ? Number(text) : NaN;
  const exact = Number.isInteger(number) ? Number.isSafeInteger(number) : Number.isFinite(number);
  return exact ? number : text;
}
