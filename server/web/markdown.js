// Makes elements of a model's Markdown. The text is not trusted: marked only parses it, each element is made by name, and
// every text is set as text, so raw HTML stays what it is: letters.

import { element } from "./canvas.js";
import { lexer } from "./vendor/marked.js";

const PLAIN = { paragraph: "p", blockquote: "blockquote", strong: "strong", em: "em", del: "del" };
const SAFE = /^(https?:\/\/|mailto:)/i;
// The languages that can be coloured, by the names that fences give them.
const LANGUAGES = {
  ...{ python: "python", py: "python", json: "json", bash: "bash", sh: "bash", shell: "bash", cpp: "cpp", "c++": "cpp", c: "cpp" },
  ...{ javascript: "javascript", js: "javascript" },
};

export const markdown = (text) => blocks(lexer(text));

const blocks = (tokens) => tokens.map(block).filter(Boolean);

function block(token) {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "hr":
      return element("hr", "");
    case "heading": // below the page's own headings
      return filled(`h${Math.min(token.depth + 2, 6)}`, inlines(token.tokens));
    case "code":
      return code(token);
    case "list":
      return list(token);
    case "table":
      return table(token);
    case "blockquote":
      return filled("blockquote", blocks(token.tokens));
    case "html":
      return element("p", "", token.raw.trimEnd());
    default:
      return inline(token);
  }
}

const inlines = (tokens) => tokens.map(inline);

function inline(token) {
  if (token.type in PLAIN) return filled(PLAIN[token.type], inlines(token.tokens));
  switch (token.type) {
    case "br":
      return element("br", "");
    case "codespan":
      return element("code", "", token.text);
    case "link":
      return link(token.href, inlines(token.tokens), token.raw);
    case "image": // nothing is loaded from elsewhere
      return link(token.href, [token.text || token.href], token.raw);
    case "checkbox":
      return element("span", "", token.checked ? "\u2611 " : "\u2610 ");
    case "escape":
      return token.text;
    default:
      return token.tokens ? filled("span", inlines(token.tokens)) : (token.type === "text" ? token.text : token.raw);
  }
}

function link(href, inside, raw) {
  if (!SAFE.test(href)) return raw;
  const made = filled("a", inside);
  Object.assign(made, { href, target: "_blank", rel: "noopener noreferrer nofollow" });
  return made;
}

function list({ ordered, start, items }) {
  const made = filled(ordered ? "ol" : "ul", items.map((item) => filled("li", blocks(item.tokens))));
  if (ordered && start !== 1) made.start = start;
  return made;
}

function table({ header, rows }) {
  const row = (name) => (cells) => filled("tr", cells.map((cell) => {
    const made = filled(name, inlines(cell.tokens));
    if (cell.align) made.classList.add(cell.align);
    return made;
  }));
  const made = filled("table", [filled("thead", [row("th")(header)]), filled("tbody", rows.map(row("td")))]);
  const frame = filled("div", [made]);
  Object.assign(frame, { className: "table", tabIndex: 0, role: "group", ariaLabel: "Table" });
  return frame;
}

function code({ text, lang }) {
  const name = (lang ?? "").split(/\s/)[0];
  const words = element("code", "", text);
  colour(words, text, LANGUAGES[name.toLowerCase()]);
  const frame = filled("pre", [words]);
  Object.assign(frame, { tabIndex: 0, role: "group", ariaLabel: `Code${name ? ` in ${name}` : ""}` });
  const copier = element("button", "copy", "Copy");
  copier.type = "button";
  copier.ariaLabel = "Copy the code";
  copier.addEventListener("click", () => copy(text, copier));
  const made = filled("div", [filled("div", [element("span", "", name), copier]), frame]);
  made.className = "code";
  return made;
}

// The colours come a moment later: most pages need no grammar.
async function colour(words, text, language) {
  if (!language) return;
  const load = (name) => import(`./vendor/highlight${name}.js`).then((module) => module.default);
  const [library, grammar] = await Promise.all([load(""), load(`-${language}`)]);
  library.registerLanguage(language, grammar);
  const tree = library.highlight(text, { language, ignoreIllegals: true })._emitter.rootNode;
  words.replaceChildren(...tree.children.map(painted));
}

function painted(node) {
  if (typeof node === "string") return node;
  const made = filled("span", node.children.map(painted));
  if (node.scope) made.className = `hl-${node.scope.split(".")[0]}`;
  return made;
}

export async function copy(text, button) {
  const label = button.textContent;
  button.textContent = (await put(text)) ? "Copied" : "Not allowed";
  setTimeout(() => {
    button.textContent = label;
  }, 1500);
}

// Browsers give pages the clipboard only over HTTPS and on this machine; the older way works elsewhere.
async function put(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = element("textarea", "unseen", "");
    field.value = text;
    const { activeElement } = document;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    activeElement?.focus();
    return done;
  }
}

function filled(name, inside) {
  const made = document.createElement(name);
  made.append(...inside);
  return made;
}
