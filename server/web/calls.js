// Calls of tools in an answer: what the deltas of a stream add up to, and the form in which the reader writes their results.

import { element } from "./canvas.js";

// Adds the parts of a delta to the calls so far.
export function addTo(calls, parts) {
  for (const { index, id = "", function: { name = "", arguments: piece = "" } = {} } of parts) {
    const call = (calls[index] ??= { id: "", name: "", arguments: "" });
    call.id ||= id;
    call.name ||= name;
    call.arguments += piece;
  }
}

// False for a call that was cut off, which no message may have.
export function whole(call) {
  try {
    return Boolean(JSON.parse(call.arguments || "{}"));
  } catch {
    return false;
  }
}

// A call as a message of the assistant has it.
export const sent = ({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } });

// A line for each call.
export const lines = (calls) => calls.map((call) => element("code", "call", `${call.name}(${call.arguments})`));

// The form for the results of calls. `send` gets the messages that it makes.
export function form(calls, send) {
  const made = element("form", "results");
  const fields = calls.map((call, index) => {
    const label = element("label", "", `Result of ${call.name}${calls.length > 1 ? ` (${index + 1})` : ""}`);
    const input = element("input", "");
    Object.assign(input, { required: true, autocomplete: "off", dir: "auto" });
    label.append(input);
    return { label, input, id: call.id };
  });
  made.append(...fields.map(({ label }) => label), element("button", "", fields.length > 1 ? "Send the results" : "Send the result"));
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    send(fields.map(({ input, id }) => ({ role: "tool", tool_call_id: id, content: input.value.trim() })));
  });
  return made;
}
