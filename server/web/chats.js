// The conversations that this browser keeps, newest first. It may keep none: storage can be off, full or spoilt, and the
// chat goes on without.

const KEY = "asynclane.chats";
const MOST = 50;

export function kept() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(found) ? found.filter(sound) : [];
  } catch {
    return [];
  }
}

const sound = (chat) =>
  typeof chat?.id === "string" && Number.isFinite(chat.at) && Array.isArray(chat.turns) && chat.turns.length > 0 &&
  chat.turns.every((turn) => texts(turn, "question", "text", "note", "speed") && more(turn));

// What older chats do not have.
const more = ({ reasoning = "", calls = [], results = [] }) =>
  typeof reasoning === "string" &&
  Array.isArray(calls) && calls.every((call) => texts(call, "id", "name", "arguments")) &&
  (results === null || (Array.isArray(results) && results.every((one) => texts(one, "role", "tool_call_id", "content"))));

const texts = (value, ...names) => names.every((name) => typeof value?.[name] === "string");

// Adds the chat, or replaces its older state. Where not all fit, the oldest go. False if it cannot be kept.
export function keep(chat) {
  let chats = [chat, ...kept().filter((one) => one.id !== chat.id)].slice(0, MOST);
  for (; chats.length; chats = chats.slice(0, -1)) {
    if (write(chats)) return true;
  }
  return false;
}

export const forget = (id) => write(kept().filter((chat) => chat.id !== id));

export const forgetAll = () => write([]);

function write(chats) {
  try {
    localStorage.setItem(KEY, JSON.stringify(chats));
    return true;
  } catch {
    return false;
  }
}
