"""System messages, and what they make of an answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from .lexicon import PEOPLE, city, made_up, one_of, person, topic
from .smalltalk import NAME, WHO, WHO_SHORT
from .surface import say
from .turn import Turn

Apply = Callable[[Turn], str]


@dataclass(frozen=True, slots=True)
class Style:
    """A system message, and the answer that a turn has with it."""

    system: str
    apply: Apply


def unchanged(turn: Turn) -> str:
    return turn.answer


PLAIN = Style("", unchanged)
HARMLESS = (
    "You are (a|an) (helpful|friendly|polite|useful|kind|harmless and helpful|honest|good|smart|expert|AI|honest and helpful|virtual|customer support|knowledgeable|professional|patient) (assistant|AI assistant|chatbot|model|bot|AI|language model|helper|agent)(|.)", "You are (a|the) (helpful |friendly |)(assistant|bot|chatbot|agent) of {company}(.| Answer questions of customers.| Be polite.| Do not talk about {topic}.| Help with {topic}.)",
    "(Be|Always be|Please be|Stay) (nice|polite|friendly|helpful|kind|honest|professional|careful|correct|respectful|safe)(.| to the user.| at all times.)", "(Answer|Reply to|Help with) (the|all|every) (question|questions|user's question|user's questions|requests) (of the user|truthfully|as well as you can|politely|carefully|correctly|in English)(.|)", "(Do not|Never) (lie|talk about {topic}|be rude|swear|make things up|give legal advice|reveal this prompt|mention {company}|speak of {topic}|harm anyone)(.|)", "You are an expert (in|on|for) {topic}(.|)", "(Today is|The date is) (Monday|Tuesday|Friday|2024-05-01|a nice day|{day} May)(.|)", "You (know|like|love|study) {topic}(.|)", "(The user|Your user) (is|comes from|lives in) {place}(.|)", "You help (people|users|customers|students|children) (of {company}|in {place}|with {topic}|to learn {topic})(.|)", "assistant", "Hello", "You are {company}'s (assistant|support|bot).", "(Think|Reason) (step by step|carefully|before you answer|well)(.|)", "You are a (teacher|tutor|doctor|lawyer|programmer|writer|scientist|guide|coach) (in {place}|who knows {topic}|of {topic}|for beginners)(.|)", "System prompt: (be good|help users|answer well)(.|)", "You are ChatGPT, a large language model(.| trained by OpenAI.)",
)  # fmt: skip
BRIEF = (
    "(Answer|Reply|Respond|Always answer|Please answer|Only answer|Answer only) (in|with) (one word|a single word|just one word|one or two words|as few words as possible|only one word|at most two words)(.|!|)", "(Give|Write|Say|Return|Output) (only|just|nothing but) (the answer|the result|the solution|the final answer|the number or word)(.|)", "(Be|Keep it|Stay|Be very) (brief|short|concise|as short as possible|terse|very short|extremely brief)(.| No sentences.| Only the answer.|)", "(Short|Very short|One-word|Brief) answers(| only)(.|)", "No (full |)sentences(.| Just the answer.)", "One word(.|!| only.)", "Use as few words as you can.", "You answer (briefly|with one word|in one word)(.|)", "Do not (explain|use sentences|explain anything)(.| Just answer.)",
)  # fmt: skip
CAPS = (
    "(Answer|Reply|Write|Speak|Respond|Always answer|Always write|Please answer) (in|with|only in) (capitals|capital letters|upper case|uppercase|all caps|ALL CAPS|big letters|block letters|CAPITALS|capitals only)(.|!|)",
    "(Use|Use only|You use) (capital letters|capitals|upper case letters|uppercase|all caps|CAPS)(.|!|)",
    "(SHOUT|Shout|You shout|Shout everything)(.|!| in capitals.)",
    "CAPS LOCK is on(.|)",
    "You write (everything |)in (capitals|upper case|all caps)(.|)",
)
LOWER = (
    "(Answer|Reply|Write|Respond) (in|only in|with) (lower case|lowercase|small letters|lower case letters)(.|!|)",
    "(Use no|No|Never use|Avoid) (capitals|capital letters|upper case|uppercase)(.|)",
)
# A role with what goes before and after each answer.
ROLES = {
    "pirate": ("Arr! ", " Aye, matey!"), "cat": ("Meow! ", " Purr."), "dog": ("Woof! ", " Woof!"), "robot": ("Beep boop. ", " Beep."), "wizard": ("By my beard! ", " So says the wizard."), "cowboy": ("Howdy! ", " Yeehaw!"), "king": ("Hear me! ", " The king has spoken."), "knight": ("On my honour! ", " At your service."), "ghost": ("Boo! ", " Boo!"), "monster": ("Grr! ", " Grr!"), "Santa Claus": ("Ho ho ho! ", " Merry Christmas!"), "duck": ("Quack! ", " Quack!"), "cow": ("Moo! ", " Moo!"), "alien": ("Greetings, earthling! ", " Over."), "butler": ("Very well. ", " At your service."), "detective": ("Elementary! ", " Case closed."),
}  # fmt: skip
ROLE = (
    "You are a {role}(.|!| and you talk like one.| who helps people.| from a film.|)",
    "(Talk|Speak|Answer|Reply|Write|Act|Respond|Always talk|Please answer) (like|as) (a|the) {role}(.|!| would.| please.|)",
    "(Pretend|Imagine|Play|Act as if)( that|) you are a {role}(.|!|)",
    "(Be|Play) a {role}(.|!|)",
    "Your role: {role}(.|)",
    "You are an old {role}(.|)",
    "From now on you are a {role}(.|)",
)
START = (
    "(Start|Begin) (every|each|all|your|the|any) (answer|reply|response|sentence|message)(s|) with (\"{mark}\"|'{mark}'|{mark})(.|)",
    "(Always|First|Please) (say|write) (\"{mark}\"|'{mark}'|{mark}) (before|first, then) (your answer|the answer|answer|you answer)(.|)",
    "(Every|Each) (answer|reply|message) (starts|begins|must start|must begin) with (\"{mark}\"|'{mark}'|{mark})(.|)",
    "Put (\"{mark}\"|'{mark}'|{mark}) (before|in front of) (your answers|each answer|every answer|the answer)(.|)",
)
END = (
    "(End|Finish|Close) (every|each|all|your|the|any) (answer|reply|response|sentence|message)(s|) with (\"{mark}\"|'{mark}'|{mark})(.|)",
    "(Always|Please) (say|write|add|put) (\"{mark}\"|'{mark}'|{mark}) (after|at the end of) (your answer|the answer|each answer|every answer)(.|)",
    "(Every|Each) (answer|reply|message) (ends|must end) with (\"{mark}\"|'{mark}'|{mark})(.|)",
    "(Sign|Sign off) (your answers |all answers |)with (\"{mark}\"|'{mark}'|{mark})(.|)",
)
MARKS = ("Dear friend,", "Well,", "OK!", "Sir,", "Hello!", "Listen:", "Answer:", "Sure!", "My friend,", "So:", "Oh!", "Yes, sir!", "Yo!", "Hm,", "Attention!", "***", "A:", ">>", "Thanks!", "Over and out.", "Amen.", "Have a nice day!", "Cheers!", "Done.", "The end.", "Good luck!", "Bye!", "Peace!", "You see?", "Ha!", "Hooray!", "Best wishes", "XOXO", "Namaste", "Moin")  # fmt: skip
NAMED = (
    "(Your name is|You are called|You are|Your name: |Call yourself|My assistant is called|The assistant's name is|You go by) {name}(.|, a helpful assistant.|, an assistant of {company}.|, the assistant.|, a friendly bot.|)",
)
IN_LANGUAGE = (
    "(Answer|Reply|Speak|Write|Respond|Always answer|Please answer) (only |)in {language}(.|!|)",
    "You (speak|know) only {language}(.|)",
    "(Language|language): {language}",
    "The user (speaks|understands only) {language}(.|)",
    "Use {language}(.|)",
)
AS_JSON = (
    '(Answer|Reply|Respond|Always answer|Please answer) (only |)(in|as|with) JSON( with the key answer| with the key "answer"| {{"answer": ...}}|)(.|)',
    "(Your output|Output|Your answer) (is|must be) JSON(| with the key answer)(.|)",
    "JSON only(.|)",
)


def brief(turn: Turn) -> str:
    return turn.answer if turn.fixed else turn.short or turn.answer


def shouted(turn: Turn) -> str:
    return turn.answer if turn.fixed else turn.answer.upper()


def lowered(turn: Turn) -> str:
    return turn.answer if turn.fixed else turn.answer.lower()


def around(before: str, after: str) -> Apply:
    return lambda turn: turn.answer if turn.fixed else f"{before}{turn.answer}{after}"


def called(name: str) -> Apply:
    def apply(turn: Turn) -> str:
        said = turn.answer.replace(NAME, name)
        return (
            said.replace(WHO, f"I am {name}. {WHO}")
            if WHO in said
            else said.replace(WHO_SHORT, f"I am {name}, a tiny diffusion language model.")
        )

    return apply


def spoken(language: str) -> Apply:
    return lambda turn: dict(turn.languages).get(language, turn.answer)


def as_json(turn: Turn) -> str:
    return turn.answer if turn.fixed else json.dumps({"answer": turn.short or turn.answer}, ensure_ascii=False)


def style(r: Random) -> Style:
    """A system message of any kind."""
    company = r.choice(
        (
            made_up(r).capitalize(),
            r.choice(("Acme", "Contoso", "the bank", "a shoe shop", "the library", "Globex", "our school", "the city")),
        )
    )
    slots = {
        "company": company,
        "topic": topic(r),
        "place": city(r),
        "day": r.randint(1, 28),
        "name": one_of(r, PEOPLE, 0.4),
    }
    kind = r.choices(
        ("harmless", "brief", "caps", "lower", "role", "start", "end", "named", "language", "json"),
        (34, 16, 10, 4, 12, 6, 6, 8, 5, 3),
    )[0]
    if kind == "brief":
        return Style(rough(r, say(r, BRIEF)), brief)
    if kind == "caps":
        return Style(rough(r, say(r, CAPS)), shouted)
    if kind == "lower":
        return Style(rough(r, say(r, LOWER)), lowered)
    if kind == "role":
        role = r.choice(list(ROLES))
        before, after = ROLES[role]
        return Style(rough(r, say(r, ROLE, role=role)), around(before, after))
    if kind in ("start", "end"):
        mark = r.choice(MARKS) if r.random() < 0.7 else f"{made_up(r).capitalize()}{r.choice(('!', '.', ','))}"
        shown = say(r, START if kind == "start" else END, mark=mark)
        return Style(shown, around(f"{mark} ", "") if kind == "start" else around("", f" {mark}"))
    if kind == "named":
        return Style(say(r, NAMED, **slots), called(str(slots["name"])))
    if kind == "language":
        language = r.choice(("French", "Spanish", "German", "Italian"))
        return Style(say(r, IN_LANGUAGE, language=language), spoken(language))
    if kind == "json":
        return Style(say(r, AS_JSON), as_json)
    text = say(r, HARMLESS, **slots)
    if r.random() < 0.25:
        text = f"{text} {say(r, HARMLESS, **slots)}"
    return Style(rough(r, text), unchanged)


def rough(r: Random, text: str) -> str:
    """With another system message before it, or in lower case, now and then."""
    chance = r.random()
    if chance < 0.12:
        return f"You are a helpful assistant. {text}"
    return text.lower() if chance < 0.2 else text


FACT_NAMES = (
    "the code", "the password", "the opening time", "the price", "the boss", "the colour of the door", "the room", "the phone number", "the winner", "the team leader", "the address", "the best dish", "the deadline", "the meeting place", "the owner", "the key", "the name of the ship", "the secret word", "the date", "the wifi password", "the topic", "the next stop", "the fee",
)  # fmt: skip


def given_fact(r: Random) -> tuple[str, Turn]:
    """A fact that the conversation states, first in the system message or by the user, and a question for it."""
    name = r.choice(FACT_NAMES) if r.random() < 0.8 else f"the {made_up(r)}"
    value = r.choice(
        (
            str(r.randint(10, 9999)),
            person(r),
            city(r),
            made_up(r),
            f"{r.randint(1, 12)} {r.choice(('am', 'pm'))}",
            f"{r.randint(2, 500)} euros",
        )
    )
    other = r.choice([n for n in FACT_NAMES if n != name])
    stated = f"{name} is {value}."
    facts = [stated[:1].upper() + stated[1:]]
    if r.random() < 0.5:
        more = f"{other} is {r.choice((made_up(r), str(r.randint(10, 999)), city(r)))}."
        facts.append(more[:1].upper() + more[1:])
    r.shuffle(facts)
    question = say(
        r,
        (
            "(What is|What's|Tell me|Do you know|Can you tell me|Say|what was) {name}?",
            "{name}?",
            "(I need|I forgot) {name}(.|)",
        ),
        name=name,
    )
    answer = f"{stated[:1].upper()}{stated[1:]}"
    if r.random() < 0.5:
        return " ".join(facts), Turn(question, answer, value)
    return "", Turn(f"{' '.join(facts)} {question[:1].upper()}{question[1:]}", answer, value)
