// A replay in a link: the question, the answer and its lane events, compressed, in the fragment of the address. Browsers
// do not send fragments, so no server sees one. What a link holds is not trusted: it is checked field by field.

const NAME = "#replay=";
const MOST_LINK = 60_000; // characters
const MOST_BYTES = 4_000_000; // of the text in a link
const MOST_STEPS = 5_000;
const MOST_POSITIONS = 10_000;
const ROLES = ["generate", "refine"];
const FATES = ["live", "forked", "finished", "cancelled"];

// The address of a replay; null if it would be too long to pass on.
export async function linkTo(replay) {
  const { steps, ...rest } = replay;
  const short = steps.map(({ lanes, commits }) => [
    lanes.map(({ id, parent, role, start, end, fate }) => [id, parent, ROLES.indexOf(role), start, end, FATES.indexOf(fate)]),
    commits.map(({ position, text }) => [position, text]),
  ]);
  const packed = await through(new Blob([JSON.stringify({ ...rest, steps: short })]), new CompressionStream("deflate-raw"));
  const letters = Array.from(packed, (byte) => String.fromCharCode(byte)).join("");
  const address = new URL(location.href);
  address.hash = NAME + btoa(letters).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
  return address.href.length <= MOST_LINK ? address.href : null;
}

// The replay in the page's address; null if there is none. Raises an error if it is broken.
export async function fromAddress(hash = location.hash) {
  if (!hash.startsWith(NAME)) return null;
  try {
    const letters = atob(hash.slice(NAME.length).replace(/-/g, "+").replace(/_/g, "/"));
    const packed = new Blob([Uint8Array.from(letters, (letter) => letter.charCodeAt(0))]);
    const text = new TextDecoder().decode(await through(packed, new DecompressionStream("deflate-raw")));
    return checked(JSON.parse(text));
  } catch {
    throw new Error("The replay in this link is broken, or from another version.");
  }
}

async function through(blob, stream) {
  const parts = [];
  let size = 0;
  const reader = blob.stream().pipeThrough(stream).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > MOST_BYTES) throw new Error("too long");
    parts.push(value);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

function checked({ model, decoder, question, text, note, speed, confidences, steps }) {
  const words = { model, decoder, question, text, note, speed };
  must(Object.values(words).every((word) => typeof word === "string"));
  must(Array.isArray(confidences) && confidences.every((share) => typeof share === "number"));
  must(Array.isArray(steps) && steps.length <= MOST_STEPS);
  return { ...words, confidences, steps: steps.map(([lanes, commits]) => ({ lanes: lanes.map(lane), commits: commits.map(commit) })) };
}

function lane([id, parent, role, start, end, fate]) {
  must([id, start, end, role, fate].every(placed) && (parent === null || placed(parent)) && role in ROLES && fate in FATES);
  return { id, parent, role: ROLES[role], start, end, fate: FATES[fate] };
}

function commit([position, text]) {
  must(placed(position) && typeof text === "string");
  return { position, text };
}

const placed = (number) => Number.isInteger(number) && number >= 0 && number <= MOST_POSITIONS;

function must(holds) {
  if (!holds) throw new Error("not a replay");
}
