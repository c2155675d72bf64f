"""Sums, differences, products and comparisons in plain words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from .lexicon import THINGS, one_of, person
from .surface import ask
from .turn import Turn

SUM = (
    "What is {a} + {b}?", "What's {a} + {b}?", "what is {a}+{b}", "{a} + {b}", "{a}+{b}", "{a} + {b} = ?", "{a}+{b}=", "{a} + {b} =",
    "(How much is|What is|What's|Calculate|Compute) {a} (plus|and|added to|+) {b}?", "{a} plus {b}", "{a} plus {b}?",
    "(Add|Sum) {a} and {b}.", "(What is|Find|Give me|Tell me|Calculate) the sum of {a} and {b}?", "Add {b} to {a}.",
    "(What do|How much do) {a} and {b} (make|give|make together)?", "(Can you|Could you) (add|sum) {a} and {b}?",
    "(Can you|Could you) (calculate|compute|work out|do) {a} (+|plus) {b}?", "Solve {a} + {b}.", "What does {a} + {b} (equal|make|give)?",
    "if I add {a} and {b}, what do I get?", "{a} and {b} together?", "I need {a} + {b}", "do you know {a} + {b}?",
    "Put {a} and {b} together. How much is it?", "What is the total of {a} and {b}?", "what number is {a} more than {b}?",
)  # fmt: skip
DIFFERENCE = (
    "What is {a} - {b}?", "What's {a} - {b}?", "what is {a}-{b}", "{a} - {b}", "{a}-{b}", "{a} - {b} = ?", "{a}-{b}=",
    "(How much is|What is|What's|Calculate|Compute) {a} (minus|less|take away|-) {b}?", "{a} minus {b}", "{a} minus {b}?",
    "(Subtract|Take) {b} from {a}.", "(What is|Find|Give me|Tell me) the difference (between|of) {a} and {b}?", "Take {b} away from {a}.",
    "(Can you|Could you) subtract {b} from {a}?", "(Can you|Could you) (calculate|compute|work out|do) {a} (-|minus) {b}?", "Solve {a} - {b}.",
    "What does {a} - {b} (equal|make|give)?", "what is left of {a} without {b}?", "If I take {b} from {a}, what is left?",
    "I need {a} - {b}", "do you know {a} - {b}?", "How far is it from {b} to {a}?", "what number is {b} less than {a}?",
)  # fmt: skip
PRODUCT = (
    "What is {a} * {b}?", "What's {a} x {b}?", "{a} * {b}", "{a}*{b}", "{a} x {b}", "{a} * {b} = ?", "{a}*{b}=",
    "(How much is|What is|What's|Calculate|Compute) {a} (times|multiplied by|x|*) {b}?", "{a} times {b}", "{a} times {b}?",
    "Multiply {a} (by|and|with) {b}.", "(What is|Find|Give me|Tell me) the product of {a} and {b}?", "(Can you|Could you) multiply {a} (by|and) {b}?",
    "(Can you|Could you) (calculate|compute|do) {a} (times|*|x) {b}?", "Solve {a} * {b}.", "What does {a} times {b} (equal|make|give)?",
)  # fmt: skip
QUOTIENT = (
    "What is {a} / {b}?", "What's {a} / {b}?", "{a} / {b}", "{a}/{b}", "{a}/{b}=", "{a} : {b}",
    "(How much is|What is|What's|Calculate|Compute) {a} (divided by|over|/) {b}?", "{a} divided by {b}", "Divide {a} by {b}.",
    "(Can you|Could you) divide {a} by {b}?", "How (often|many times) does {b} go into {a}?", "Split {a} into {b} equal parts. How big is each?",
)  # fmt: skip
SUMS_ABROAD = (
    "(Combien font|Combien fait) {a} (plus|+) {b} ?",
    "(¿Cuánto es|cuanto es|¿Cuánto son) {a} (más|mas|+) {b}?",
    "(Wie viel ist|Was ist|Wieviel ist|Was macht) {a} (plus|und|+) {b}?",
    "(Quanto fa|Quant'è) {a} (più|piu|+) {b}?",
)

EATEN = (
    "(If |Suppose |Say )(I|you) have {a} {things} and (I |you |)(eat|lose|sell|give away|drop|break|use|spend|throw away|give my friend) {b}(| of them), how many (are left|are there now|{things} are left|remain|do (I|you) have left|do (I|you) have|do (I|you) still have)?",
    "I had {a} {things}. I (ate|lost|sold|gave away|gave {name}|broke|used) {b}. How many (are left|do I have now|do I still have|{things} are left)?",
    "{name} has {a} {things} and (loses|sells|eats|gives away|breaks) {b}. How many (are left|{things} are left|does {name} have now)?",
    "There (are|were) {a} {things} (on the table|in the box|in the room|here|in a bag). {b} (are taken away|are gone|are broken|disappear|go away). How many are left?",
    "I have {a} {things}, (someone|{name}|my brother|my sister|a friend) takes {b}. How many (are left|now|do I have)?",
)
GAINED = (
    "(If |Suppose |Say )(I|you) have {a} {things} and (I |you |)(buy|get|find|win|receive|take|add) {b} more, how many (are there|{things} do (I|you) have|do (I|you) have|do (I|you) have now|is that|{things} are there in total)?",
    "I had {a} {things}. I (bought|found|got|won) {b} more. How many (do I have|do I have now|{things} do I have)?",
    "{name} has {a} {things} and (finds|buys|gets|wins) {b} more. How many (does {name} have|does {name} have now|{things} are there)?",
    "There (are|were) {a} {things} (on the table|in the box|in the room|here). {b} (more come|more are added|are put there, too). How many are there now?",
    "I have {a} {things}, (someone|{name}|my brother|a friend) gives me {b}. How many (now|do I have|do I have now)?",
    "{name} has {a} {things} and I have {b}. How many (do we have|do we have together|are there in all)?",
)


def operand(r: Random) -> int:
    chance = r.random()
    if chance < 0.4:
        return r.randint(1, 10) if chance < 0.15 else r.randint(0, 20)
    return r.randint(2, 99) if chance < 0.9 else r.randint(100, 600)


def sum_(r: Random) -> Turn:
    a, b = operand(r), operand(r)
    return result(r, "+", a, b, ask(r, SUM if r.random() < 0.7 else SUM[:7], plain=r.random() < 0.5, a=a, b=b))


def difference(r: Random) -> Turn:
    b, a = sorted((operand(r), operand(r)))
    return result(
        r, "-", a, b, ask(r, DIFFERENCE if r.random() < 0.7 else DIFFERENCE[:7], plain=r.random() < 0.5, a=a, b=b)
    )


def product(r: Random) -> Turn:
    a, b = r.randint(0, 13), r.randint(0, 12)
    if r.random() < 0.2:
        a, b = r.choice(((r.randint(11, 60), r.randint(2, 9)), (r.randint(2, 40), 10)))
    if r.random() < 0.5:
        a, b = b, a
    return result(r, "*", a, b, ask(r, PRODUCT if r.random() < 0.7 else PRODUCT[:7], plain=r.random() < 0.5, a=a, b=b))


def quotient(r: Random) -> Turn:
    b, c = r.randint(1, 12), r.randint(0, 12)
    return result(r, "/", b * c, b, ask(r, QUOTIENT, plain=r.random() < 0.5, a=b * c, b=b))


VALUE: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
}
REASON = {
    "+": "If you have {a} and add {b}, you get {c}, so {a} + {b} = {c}.",
    "-": "If you have {a} and take away {b}, {c} is left, so {a} - {b} = {c}.",
    "*": "{a} groups of {b} are {c} in all, so {a} * {b} = {c}.",
    "/": "{b} groups of {c} are {a} in all, so {a} / {b} = {c}.",
}


def result(r: Random, sign: str, a: int, b: int, asked: str) -> Turn:
    c = VALUE[sign](a, b)
    answer = f"{a} {sign} {b} = {c}."
    return Turn(
        asked,
        answer,
        str(c),
        REASON[sign].format(a=a, b=b, c=c),
        partial(on, value=c),
        tuple((language, answer) for language in ("French", "Spanish", "German", "Italian")),
    )


def on(r: Random, value: int) -> Turn:
    """A next step from a value."""
    sign = r.choice("++++--*/") if value < 1000 else "-"
    b = r.randint(1, 20) if r.random() < 0.7 else operand(r)
    if sign == "-":
        b = r.randint(0, min(value, 99))
    elif sign == "*":
        b = r.randint(2, 3) if value > 20 else r.randint(2, 9)
    elif sign == "/":
        b = next((n for n in r.sample(range(2, 11), 9) if value % n == 0), 1)
    if value > 300 and sign == "*":
        sign, b = "+", r.randint(1, 20)
    wordings = {
        "+": ("(and|And|and now|now|ok and|and what is that|what about) (plus|+) {b}?", "plus {b}", "+ {b}", "+{b}", "(Add|add|now add|and add|and if I add) {b} (to that|to it|more)?",
              "and {b} more?", "(and|now) {b} more", "(And|and) with {b} more?", "(and|And) if I add {b}?", "what is that plus {b}?"),
        "-": ("(and|And|and now|now|ok and|and what is that|what about) (minus|-|less) {b}?", "minus {b}", "- {b}", "-{b}", "(subtract|now subtract|take away|now take away) {b}(| from that| from it)",
              "and {b} less?", "and without {b}?", "(and|And) if I take away {b}?", "what is that minus {b}?"),
        "*": ("(and|And|and now|now|ok and|and what is that) (times|multiplied by|*) {b}?", "times {b}", "* {b}", "(multiply|now multiply) (that|it) by {b}", "what is that times {b}?"),
        "/": ("(and|And|and now|now|and what is that) (divided by|/) {b}?", "divided by {b}", "/ {b}", "(divide|now divide) (that|it) by {b}"),
    }  # fmt: skip
    patterns = wordings[sign]
    if sign == "*" and b == 2:
        patterns = (*patterns, "(and|now) (double|twice) (that|it)(|?)", "double it", "and the double?", "twice that?")
    if sign == "/" and b == 2:
        patterns = (*patterns, "(and|now) half of (that|it)?", "and the half?", "halve it")
    return result(r, sign, value, b, ask(r, patterns, plain=True, b=b))


def story_sum(r: Random) -> Turn:
    """A word problem in a sentence."""
    things, name = one_of(r, THINGS, 0.15), person(r)
    if r.random() < 0.5:
        b, a = sorted((r.randint(1, 30), r.randint(2, 60)))
        asked = ask(r, EATEN, plain=True, a=a, b=b, things=things, name=name)
        turn = result(r, "-", a, b, asked)
        left = f"{a} - {b} = {a - b}, so {a - b} {things} are left."
    else:
        a, b = r.randint(1, 60), r.randint(1, 40)
        turn = result(r, "+", a, b, ask(r, GAINED, plain=True, a=a, b=b, things=things, name=name))
        left = f"{a} + {b} = {a + b}, so there are {a + b} {things}."
    return Turn(turn.ask, left, turn.short, turn.why, turn.follow)


def abroad(r: Random) -> Turn:
    pattern = r.choice(SUMS_ABROAD)
    a, b = operand(r), operand(r)
    return result(r, "+", a, b, ask(r, pattern, plain=True, a=a, b=b))


def comparison(r: Random) -> Turn:
    a, b = r.sample(range(1, 200), 2)
    larger = r.random() < 0.6
    word = (
        r.choice(("larger", "bigger", "greater", "higher", "more"))
        if larger
        else r.choice(("smaller", "less", "lower"))
    )
    c = max(a, b) if larger else min(a, b)
    other = a + b - c
    asked = ask(
        r,
        (
            "(Which|Which number|What) is {word}, {a} or {b}?",
            "(is|Is) {a} or {b} {word}?",
            "{a} or {b}, which is {word}?",
        ),
        a=a,
        b=b,
        word=word,
    )
    plain = "larger" if larger else "smaller"
    return Turn(
        asked,
        f"{c} is {plain} than {other}.",
        str(c),
        f"{c} is {plain} than {other} because it comes {'after' if larger else 'before'} it when you count.",
    )


def parity(r: Random) -> Turn:
    n, word = r.randint(0, 300), r.choice(("even", "odd"))
    kind = "odd" if n % 2 else "even"
    if r.random() < 0.3:
        return Turn(
            ask(r, ("Is {n} (even or odd|odd or even)?", "(is the number|what about) {n} even or odd?"), n=n),
            f"{n} is {kind}.",
            kind.capitalize(),
        )
    yes = "Yes" if kind == word else "No"
    return Turn(
        ask(r, ("Is {n} (an |){word}( number|)?", "is {n} {word}"), n=n, word=word),
        f"{yes}, {n} is {kind}.",
        yes,
        f"Its last digit is {n % 10}, so {n} is {kind}.",
    )


def single(r: Random) -> Turn:
    """Double, half, square, next, percent."""
    n = r.randint(1, 100)
    kind = r.randrange(6)
    if kind == 0:
        return result(
            r,
            "*",
            2,
            n,
            ask(
                r,
                ("(What is|What's|How much is|Give me) (the double of|double|twice|two times) {n}?", "double {n}"),
                n=n,
            ),
        )
    if kind == 1:
        return result(
            r,
            "/",
            2 * n,
            2,
            ask(
                r,
                (
                    "(What is|What's|How much is|Give me) (the half of|half of|a half of) {n}?",
                    "half of {n}",
                    "halve {n}",
                ),
                n=2 * n,
            ),
        )
    if kind == 2:
        n = r.randint(1, 15)
        return result(
            r,
            "*",
            n,
            n,
            ask(
                r,
                ("(What is|What's|How much is|Give me) (the square of {n}|{n} squared)?", "{n} squared", "{n}^2"),
                n=n,
            ),
        )
    if kind == 3:
        asked = ask(
            r,
            ("(What|Which) (number |)comes (after|next after) {n}?", "what is the (next number|number) after {n}?"),
            n=n,
        )
        return Turn(asked, f"After {n} comes {n + 1}.", str(n + 1), f"{n} + 1 = {n + 1}.", partial(on, value=n + 1))
    if kind == 4:
        asked = ask(r, ("(What|Which) (number |)comes before {n}?", "what is the number before {n}?"), n=n)
        return Turn(asked, f"Before {n} comes {n - 1}.", str(n - 1), f"{n} - 1 = {n - 1}.", partial(on, value=n - 1))
    share, parts = r.choice(((10, 10), (50, 2), (20, 5), (25, 4), (100, 1)))
    whole = parts * r.randint(1, 40)
    asked = ask(
        r,
        ("(What is|What's|How much is|Calculate) {share}(%| percent| %) of {whole}?", "{share}% of {whole}"),
        share=share,
        whole=whole,
    )
    c = whole // parts
    return Turn(asked, f"{share}% of {whole} is {c}.", str(c), f"{whole} / {parts} = {c}.", partial(on, value=c))


def three(r: Random) -> Turn:
    a, b, c = (r.randint(1, 40) for _ in range(3))
    total = a + b + c
    asked = ask(
        r,
        (
            "(What is|What's|How much is|Calculate|Compute|) {a} + {b} + {c}?",
            "{a}+{b}+{c}",
            "Add {a}, {b} and {c}.",
            "(What is|Give me) the sum of {a}, {b} and {c}?",
            "{a} plus {b} plus {c}",
        ),
        a=a,
        b=b,
        c=c,
    )
    answer = f"{a} + {b} = {a + b}, and {a + b} + {c} = {total}."
    return Turn(asked, answer, str(total), answer, partial(on, value=total))


def wording(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def count(r: Random) -> Turn:
    a, b = sorted(r.sample(range(30), 2))
    if r.random() < 0.5:
        a = 1
        b = r.randint(3, 20)
    b = min(b, a + 20)
    asked = ask(
        r,
        (
            "(Count|Please count|Can you count) (from |){a} to {b}?",
            "(Count|count up) to {b}" if a == 1 else "count from {a} up to {b}",
            "(List|Write|Say|Print) the numbers (from|between) {a} (to|and) {b}.",
        ),
        a=a,
        b=b,
    )
    if "between" in asked and a + 1 == b:
        return count(r)
    return Turn(asked, wording(range(a, b + 1)) + ".")


NUMBERS = (
    (6, sum_), (5, difference), (4, product), (2, quotient), (5, story_sum), (0.6, abroad), (1, comparison), (1, parity),
    (2, single), (1, three), (1, count),
)  # fmt: skip


def numbers(r: Random) -> Turn:
    weights, draws = zip(*NUMBERS, strict=True)
    turn: Turn = r.choices(draws, weights)[0](r)
    return turn
