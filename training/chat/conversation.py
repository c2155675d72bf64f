"""Whole conversations: a system message, one to three turns, tools; and those that no training may have."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random

from .chores import chore
from .knowledge import knowledge
from .limits import limit
from .numbers import numbers
from .smalltalk import BYE, WELCOME, introduction, remembered, small_talk
from .structured import structured
from .styles import PLAIN, Style, given_fact, style
from .surface import ask
from .tools import idle_tools, tool_calls
from .turn import Draw, Turn

OPENERS = Path(__file__).parents[2] / "bench" / "quality" / "openers.json"
LEAST_CONTAINED = 10  # characters of a question that may not even be a part of one of training
Message = tuple[str, str]  # role, content


@dataclass(frozen=True, slots=True)
class Conversation:
    """`opened` characters of the answer are given, as by a grammar."""

    messages: tuple[Message, ...]
    answer: str
    tools: tuple[Mapping[str, object], ...] = ()
    opened: int = 0


def normal(text: str) -> str:
    """Letters, digits and signs of arithmetic, in lower case and without accents."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(c))
    return re.sub(r"[^\w+*/-]|_", "", plain)


@cache
def kept_for_evaluation() -> frozenset[str]:
    """Normal forms of the questions of `bench.quality.openers`."""
    kept = json.loads(OPENERS.read_text(encoding="utf-8"))
    texts = [row["ask"] for part in ("openers", "schemas", "tools") for row in kept[part]]
    return frozenset(map(normal, [*texts, *(row["then"] for row in kept["second_turns"])]))


def refused(text: str) -> bool:
    """True for a question that evaluation has, and for one that contains it."""
    short = normal(text)
    kept = kept_for_evaluation()
    return short in kept or any(len(part) >= LEAST_CONTAINED and part in short for part in kept)


INTENTS: tuple[tuple[float, Draw], ...] = ((28, numbers), (21, small_talk), (17, limit), (17, knowledge), (17, chore))


def intent(r: Random) -> Turn:
    weights, draws = zip(*INTENTS, strict=True)
    turn: Turn = r.choices(draws, weights)[0](r)
    return turn


def anyhow(r: Random, before: Turn, said: str) -> Turn:
    """A next turn that every turn can have."""
    options: list[Callable[[], Turn]] = [
        lambda: Turn(
            ask(
                r,
                "(Thanks|Thank you|thx|Thank you very much|ok thanks|Great, thanks|thanks a lot|thank you so much|perfect, thank you|cool thanks|many thanks|nice, thank you|cheers|thanks, great)(!|.|)(| That helps.| that was good.| very nice.| that was helpful| I like it| it was fun| that is great| well done)",
                plain=True,
            ),
            WELCOME,
            "You are welcome!",
        ),
        lambda: Turn(
            ask(
                r,
                "(Bye|Goodbye|see you|ok bye|good night|bye bye|I have to go|see you later|that is all)(!|.|)",
                plain=True,
            ),
            BYE,
            "Goodbye!",
        ),
        lambda: Turn(
            ask(
                r,
                "(ok|Okay|good|great|nice|cool|I see|interesting|wow|perfect|right|aha|yes|lol|haha)(!|.|)",
                plain=True,
            ),
            "Good! Ask me another one whenever you like.",
            "Good!",
        ),
    ]
    if not before.fixed:
        options += [
            lambda: Turn(
                ask(
                    r,
                    "(Repeat that|Say that again|again, please|Can you repeat (that|it)|What did you say|once more|repeat|say it again|I did not hear that|come again|pardon|one more time|what was that|repeat your answer|write it again)(|?|.|!| please)",
                    plain=True,
                ),
                said,
                before.short,
            ),
            lambda: Turn(
                ask(
                    r,
                    "(shorter|Shorter, please|in short|briefly|make it shorter|too long|Can you make it shorter|say it in (one word|a word|fewer words|few words)|in one word|in a word|in fewer words|shorter please|a shorter answer|the short version|tl;dr|be brief|just the answer|summarize|sum it up|can you be shorter|say it shorter|and shorter)(|?|.|!)",
                    plain=True,
                ),
                before.short or first_sentence(said),
                before.short,
            ),
            lambda: Turn(
                ask(
                    r,
                    "(in capitals|in upper case|IN CAPITALS|shout it|now in capitals|write it in capitals|louder|in big letters|uppercase|say it in capitals|all caps|in all caps)(|?|.|!| please)",
                    plain=True,
                ),
                said.upper(),
                before.short,
            ),
            lambda: (
                Turn(
                    ask(
                        r,
                        "(What did I (ask|say|write)(| you| before| just now)|what was my (question|last question|message)|repeat my question|what have I asked)(|?|.)",
                        plain=True,
                    ),
                    f'You asked: "{before.ask}"',
                    "",
                )
                if len(before.ask) < 70
                else before
            ),
            lambda: Turn(
                ask(
                    r,
                    "(what was (the|your) (question|answer) again|what did you (answer|say)|your answer again|what was the result)(|?|.)",
                    plain=True,
                ),
                said,
                before.short,
            ),
        ]
        if before.short:
            options.append(
                lambda: Turn(
                    ask(
                        r,
                        "(Are you sure|Really|is that right|is that true|sure|are you certain|is that correct|you sure|for real|are you really sure|is this right|can you check (that|it)|check again|double check|seriously|honestly)(|?|??|!)(| about that)",
                        plain=True,
                    ),
                    f"Yes. {said}",
                    "Yes.",
                )
            )
        if before.why:
            options += [
                lambda: Turn(ask(r, "(why|Why|how come|why so|how so|Why is it so|Explain|explain that|explain it|explain please|how do you know|how did you get that|how did you find that|Can you explain|I don't understand|I do not understand|what do you mean|how is that|how|show me how|show your work|prove it|give me the reason|the reason|and why|tell me why|but why|where does it come from|how does it work|why this answer)(|?|.|??)", plain=True), before.why, before.short),
            ] * 3  # fmt: skip
        for language, text in before.languages:
            options.append(
                lambda language=language, text=text: Turn(
                    ask(
                        r,
                        "(in|and in|now in|say it in|say that in|ok, and in|what is that in) {language}(|?|.|, please| please)",
                        plain=True,
                        language=language,
                    ),
                    text,
                    before.short,
                )
            )  # type: ignore[misc]
    return r.choice(options)()


def first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0]


def chat(r: Random) -> Conversation:
    """One to four turns with or without a system message."""
    chosen = style(r) if r.random() < 0.35 else PLAIN
    system, count = chosen.system, r.choices((1, 2, 3, 4), (42, 28, 19, 11))[0]
    if count == 1 and r.random() < 0.06:
        facts, turn = given_fact(r)
        system = " ".join(part for part in (system, facts) if part)
        turns = [turn]
    elif count > 1 and r.random() < 0.18:
        turns = [introduction(r) if r.random() < 0.7 else remembered(r)]
    else:
        turns = [intent(r)]
    memory = turns[0] if turns[0].follow and count > 1 else None
    said = [chosen.apply(turns[0])]
    for number in range(1, count):
        before, chance = turns[-1], r.random()
        if (
            number >= 2
            and memory
            and memory.follow
            and turns[0].answer.startswith(("Nice to meet", "I see, your"))
            and chance < 0.4
        ):
            turn = memory.follow(r)
        elif before.follow and chance < 0.42:
            turn = before.follow(r)
        elif chance < 0.62:
            turn = anyhow(r, before, before.answer)
        else:
            turn = intent(r)
        turns.append(turn)
        said.append(chosen.apply(turn))
    tools = idle_tools(r) if r.random() < 0.06 else ()
    if tools and any(word in turns[-1].ask.lower() for word in ("+", "plus", "times", "*", "sum")):
        tools = ()
    messages: list[Message] = [("system", system)] if system else []
    for turn, text in zip(turns[:-1], said[:-1], strict=True):
        messages += [("user", turn.ask), ("assistant", text)]
    return Conversation((*messages, ("user", turns[-1].ask)), said[-1], tools)


def in_json(r: Random) -> Conversation:
    system, turn = structured(r)
    if not system and r.random() < 0.2:
        system = "You are a helpful assistant." if r.random() < 0.5 else harmless(r).system
    messages: list[Message] = [("system", system)] if system else []
    for _ in range(r.choice((0, 0, 0, 1, 2)) if unchanged_by(system) else 0):
        earlier = intent(r)
        messages += [("user", earlier.ask), ("assistant", earlier.answer)]
    return Conversation((*messages, ("user", turn.ask)), turn.answer, opened=turn.opened)


def harmless(r: Random) -> Style:
    while True:
        found = style(r)
        if found.apply(Turn("", "a. B", "c")) == "a. B":
            return found


def unchanged_by(system: str) -> bool:
    """True for a system message that does not want JSON."""
    return "{" not in system and "JSON" not in system


def with_tools(r: Random) -> Conversation:
    """Calls, answers from their results, and requests after them."""
    turns = tool_calls(r, r.choices((1, 2, 3), (60, 28, 12))[0])
    system = harmless(r).system if r.random() < 0.25 else ""
    messages: list[Message] = [("system", system)] if system else []
    if r.random() < 0.25:
        earlier = small_talk(r)
        messages += [("user", earlier.ask), ("assistant", earlier.answer)]
    tools = turns[0].tools
    for number, turn in enumerate(turns, 1):
        messages.append(("user", turn.ask))
        last, chance = number == len(turns), r.random()
        if last and chance < 0.72:
            return Conversation(tuple(messages), turn.answer, tools)
        assert turn.follow
        result = turn.follow(r)
        messages += [("assistant", turn.answer), ("tool", result.ask)]
        if last and chance < 0.93:
            return Conversation(tuple(messages), result.answer, tools)
        messages.append(("assistant", result.answer))
    after = anyhow(r, replace(result, fixed=False), result.answer)
    return Conversation((*messages, ("user", after.ask)), after.answer, tools)


KINDS: tuple[tuple[float, Callable[[Random], Conversation]], ...] = ((0.68, chat), (0.16, in_json), (0.16, with_tools))


def conversations(r: Random) -> Iterator[Conversation]:
    """Conversations without end, none of them with a question of the evaluation."""
    shares, draws = zip(*KINDS, strict=True)
    while True:
        found: Conversation = r.choices(draws, shares)[0](r)
        if found.answer and not any(refused(text) for role, text in found.messages if role == "user"):
            yield found
