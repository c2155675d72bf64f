"""Lists, code, stories and poems, asked for in other words than the problems of `bench` have."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random

from ...bench.load import problems as checkable
from ...bench.load.code_problems import CONDITIONS, LEADS, MAPPED, REDUCTIONS, TEXT_FUNCTIONS, Function, _list_function
from ...bench.load.problems import LIST_TASKS, WORDS
from ...bench.load.word_problems import word_problem
from .lexicon import HEROES, PRODUCTS, SUBJECTS, THINGS, made_up, one_of, person
from .surface import ask
from .turn import Turn

LISTED = "(:| |: |, |) {items}"
# A wording of each kind of request; the answers are those of `bench`.
SORT = (
    "(Sort|Order|Arrange|Please sort|Can you sort|sort|Put in order|Rank)( these numbers| the numbers| this list| these| the list|){how}{listed}(.|?|)",
    "(Bring|Put) (these numbers|the numbers|this list|these) (in|into) (order|ascending order|the right order){listed}(.|)",
    "{items} - (sort|order|sort them|sorted|in order|please sort)(| please)",
    "(what is|show me|give me) {items} (sorted|in order)(?|.|)",
    "{items}(:|) (sort these|sort them|sort this list|in order please)(.|)",
    "I want {items} sorted(.|)",
    "sorted {items}",
)
DOWN = (
    "(Sort|Order|Arrange)( these numbers| the numbers| this list|) (from large to small|in descending order|descending|from high to low|from largest to smallest|from big to small|backwards by size){listed}(.|)",
)
REVERSED = (
    "(Reverse|Turn around|Flip|Please reverse|Can you reverse|invert)( the list| these| this list| these numbers| the order of|){listed}(.|?|)",
    "(Write|Say|Give me|Show me)( me|) {items} (backwards|in reverse|in reverse order|reversed|from back to front)(.|)",
    "{items}(,|) (backwards|reversed|in reverse)(.|)",
    "(what is|say) {items} (backwards|in reverse order)(?|.|)",
    "(put|turn) (this list|these) (backwards|around){listed}",
)
LARGEST = (
    "(What is|What's|Which is|Find|Give me|Tell me|which number is|show me|pick) the (largest|biggest|highest|greatest|max|maximum)(| number| value| one)( of| in|){listed}(.|?|)",
    "(max|maximum|largest) of{listed}(|?)",
    "which of {items} is the (largest|biggest|highest)?",
)
SMALLEST = (
    "(What is|What's|Which is|Find|Give me|Tell me|which number is|show me|pick) the (smallest|lowest|least|min|minimum)(| number| value| one)( of| in|){listed}(.|?|)",
    "(min|minimum|smallest) of{listed}(|?)",
    "which of {items} is the (smallest|lowest)?",
)
BOTH = (
    "(What are|Find|Give me|Tell me) the (largest and the smallest|largest and smallest|max and min|biggest and smallest|maximum and minimum)( number| numbers|)( of| in|){listed}(.|?|)",
)
MANY = (
    "(How many) (numbers|items|elements|things|entries) (are|are in|are there in|has) (this list|here|the list){listed}(?|.|)",
    "(count|Count) (these|the items|the numbers|the elements){listed}(.|)",
    "(what is|tell me) the (length|size) of{listed}(?|)",
)


def wording(items: Sequence[object]) -> str:
    return ", ".join(map(str, items))


def as_sorted(xs: Sequence[int]) -> str:
    return f"Sorted: {wording(sorted(xs))}."


def as_down(xs: Sequence[int]) -> str:
    return f"Sorted: {wording(sorted(xs, reverse=True))}."


def as_reversed(xs: Sequence[object]) -> str:
    return f"Reversed: {wording(list(reversed(xs)))}."


def as_largest(xs: Sequence[int]) -> str:
    return f"The largest number is {max(xs)}."


def as_smallest(xs: Sequence[int]) -> str:
    return f"The smallest number is {min(xs)}."


def as_both(xs: Sequence[int]) -> str:
    return f"The largest number is {max(xs)} and the smallest is {min(xs)}."


def as_many(xs: Sequence[object]) -> str:
    return f"There are {len(xs)}."


AGAIN = {
    "down": ("(now|and now|and|ok, now|now sort them|and sorted|and how is it|now the same|please) (from large to small|in descending order|descending|from high to low|from largest to smallest|the other way round|the other way|from big to small)(|.|?|!)", "(descending|in descending order|from large to small)( please|)"),
    "up": ("(now|and now|and|now sort them|now sort it|please) (from small to large|in ascending order|ascending|from low to high|in order|sorted)(|.|?)", "(sort them|sort it|now sort|sort that|sort these)( please|)(|.|!)"),
    "reversed": ("(now|and now|and|now write them|now the list) (reversed|backwards|in reverse|in reverse order)(|.|?)", "(reverse it|reverse them|now reverse it|reverse that|turn it around|and backwards)(|.|!)"),
    "largest": ("(and |now |)(what is|which is|what's) the (largest|biggest|highest|maximum)(| of them| one| number)?", "(and |now |)the (largest|biggest)(| one| number)?"),
    "smallest": ("(and |now |)(what is|which is|what's) the (smallest|lowest|minimum)(| of them| one| number)?", "(and |now |)the smallest(| one| number)?"),
    "many": ("(and |)how many (are there|are they|numbers are there|is that|numbers|items)?", "(how many|count them)(|?)"),
}  # fmt: skip
ANSWERS = {
    "down": as_down,
    "up": as_sorted,
    "reversed": as_reversed,
    "largest": as_largest,
    "smallest": as_smallest,
    "many": as_many,
}


def list_next(r: Random, xs: tuple[int, ...], shown: tuple[int, ...]) -> Turn:
    """The next request about numbers, of which `shown` is the last order."""
    kind = r.choice(list(AGAIN))
    base = shown if kind == "reversed" else xs
    answer = ANSWERS[kind](base)
    order = shown
    if kind in ("down", "up", "reversed"):
        order = tuple({"down": sorted(xs, reverse=True), "up": sorted(xs), "reversed": list(reversed(base))}[kind])
    return Turn(
        ask(r, AGAIN[kind], plain=True),
        answer,
        answer.split(" is ")[-1].split(": ")[-1].rstrip("."),
        follow=partial(list_next, xs=xs, shown=order),
    )


def list_chore(r: Random) -> Turn:
    if r.random() < 0.25:
        task = r.choice(LIST_TASKS)
        items = task.items(r)
        prompt = task.prompt.format(task.between.join(items))
        return Turn(
            prompt
            if r.random() < 0.4
            else prompt.lower()
            if r.random() < 0.5
            else ask(r, "{prompt}", prompt=prompt[:-1] if prompt.endswith(".") else prompt),
            task.answer(items),
        )
    count = r.randint(2, 7)
    xs = tuple(r.randint(0, 99) if r.random() < 0.8 else r.randint(0, 20) for _ in range(count))
    between = r.choice((", ", ", ", ", ", ",", " ", " and ")) if count == 2 else r.choice((", ", ", ", ", ", ",", " "))
    items = between.join(map(str, xs))
    if between == ", " and r.random() < 0.3:
        items = f"{wording(xs[:-1])} and {xs[-1]}"
    if r.random() < 0.1:
        items = f"[{items}]"
    kind, how = r.randrange(8), ""
    listed = r.choice((": ", ": ", " ", " - ", ":")) + items
    patterns = (SORT, SORT, DOWN, REVERSED, LARGEST, SMALLEST, BOTH, MANY)[kind]
    make = (as_sorted, as_sorted, as_down, as_reversed, as_largest, as_smallest, as_both, as_many)[kind]
    if kind < 2:
        how = r.choice(
            ("", "", "", " from small to large", " ascending", " in ascending order", " from low to high", " by size")
        )
    if kind in (3, 7) and r.random() < 0.3:
        words = r.sample(WORDS, r.randint(2, 6)) if r.random() < 0.7 else [made_up(r) for _ in range(r.randint(2, 5))]
        listed = ": " + wording(words)
        text = ask(r, patterns, plain=True, items=wording(words), listed=listed)
        return Turn(text, make(words))  # type: ignore[operator]
    answer = make(xs)
    order = {1: sorted(xs), 0: sorted(xs), 2: sorted(xs, reverse=True), 3: list(reversed(xs))}.get(kind, list(xs))
    asked = ask(r, patterns, plain=True, items=items, listed=listed, how=how)
    return Turn(
        asked,
        answer,
        answer.split(" is ")[-1].split(": ")[-1].rstrip("."),
        follow=partial(list_next, xs=xs, shown=tuple(order)),
    )


TAIL = "Call it with your own data to try it."
CODE = "(Write|Give me|Show me|Make|Create|Please write|Can you write|I need|Could you write|Code|Implement|write me|Define|make me|Can you code|Can you show me|I want|how do I write|help me write|program|write some) (a |a small |a short |the |some |one |a simple |)(Python function|function in Python|function|python code|Python program|python script|method|piece of Python|python|def|code) (that|which|to|for something that) "
LIKE_TEXT = {
    "reverse_text": ("reverses (the|a) (text|string|word|sentence|input)", "reverse (the|a) (text|string|word|sentence)", "(flips|turns around) a string", "writes a (text|string|word) backwards", "return a string reversed"),
    "count_vowels": ("counts (the |)vowels( in a (text|string|word)|)", "count vowels( in (a|the) (text|string)|)", "tells how many vowels a text has"),
    "is_palindrome": ("(checks|tests|tells|finds out) (if|whether) a (text|string|word) is a palindrome", "check (for|a) palindrome(s|)", "detects palindromes", "is a palindrome test"),
    "first_word": ("(returns|gives|finds|gets) the first word( of a (text|string|sentence)|)", "get the first word of a (text|string|sentence)"),
    "longest_word": ("(returns|gives|finds|gets) the longest word( of a (text|string|sentence)|)", "find the longest word( in a (text|string|sentence)|)"),
    "count_words": ("counts (the |)words( in a (text|string|sentence)|)", "count words( in (a|the) (text|string)|)", "tells how many words a text has"),
    "title_case": ("capitalizes (every|each) word( of a (text|string|sentence)|)", "capitalize every word( of a text|)", "puts a text in title case"),
    "remove_spaces": ("removes (all |the |)(spaces|blanks|whitespace)( from a (text|string|sentence)|)", "remove (all |)spaces( from a (text|string)|)", "deletes the spaces of a text"),
}  # fmt: skip
MORE_CODE = (
    (Function("hello", "", "prints hello world", '    print("Hello, world!")'), ("prints hello world", "print hello world", "says hello", "write hello world", "says hello world", "outputs hello world")),
    (Function("add", "a, b", "returns the sum of two numbers", "    return a + b"), ("adds two numbers", "add two numbers", "sums two numbers", "returns the sum of two numbers", "adds a and b")),
    (Function("multiply", "a, b", "returns the product of two numbers", "    return a * b"), ("multiplies two numbers", "multiply two numbers", "returns the product of two numbers")),
    (Function("maximum", "a, b", "returns the larger of two numbers", "    return a if a > b else b"), ("returns the larger of two numbers", "finds the maximum of two numbers", "returns the bigger of two numbers")),
    (Function("is_even", "n", "tells whether a number is even", "    return n % 2 == 0"), ("(checks|tests|tells) (if|whether) a number is even", "check (if|whether) a number is even")),
    (Function("square", "n", "returns the square of a number", "    return n * n"), ("squares a number", "square a number", "returns the square of a number")),
    (Function("factorial", "n", "returns the factorial of a number", "    result = 1\n    for i in range(2, n + 1):\n        result *= i\n    return result"), ("(computes|returns|calculates|finds) (the |)factorial( of a number| of n|)", "compute (the |)factorial( of n|)", "calculate factorials")),
    (Function("fibonacci", "n", "returns the first n fibonacci numbers", "    result = [0, 1]\n    while len(result) < n:\n        result.append(result[-1] + result[-2])\n    return result[:n]"), ("(computes|returns|prints|calculates|generates) (the |)fibonacci (numbers|sequence|series)", "compute fibonacci( numbers|)", "prints fibonacci numbers")),
    (Function("is_prime", "n", "tells whether a number is prime", "    if n < 2:\n        return False\n    for i in range(2, n):\n        if n % i == 0:\n            return False\n    return True"), ("(checks|tests|tells) (if|whether) a number is (a |)prime( number|)", "check for prime numbers", "is a prime test", "finds out if n is prime")),
    (Function("sort_numbers", "numbers", "returns the numbers sorted", "    return sorted(numbers)"), ("sorts a list( of numbers|)", "sort a list( of numbers|)", "sorts numbers", "returns a list sorted")),
    (Function("reverse_list", "items", "returns the list reversed", "    return items[::-1]"), ("reverses a list", "reverse a list", "turns a list around")),
    (Function("total", "numbers", "returns the sum of a list", "    return sum(numbers)"), ("sums a list( of numbers|)", "adds (all |)(the |)numbers (of|in) a list", "sum (a list of |)numbers", "returns the sum of a list")),
    (Function("average", "numbers", "returns the mean of a list", "    return sum(numbers) / len(numbers)"), ("(computes|returns|calculates) the (mean|average)( of a list| of numbers|)", "average a list")),
    (Function("fizzbuzz", "n", "prints fizzbuzz up to n", '    for i in range(1, n + 1):\n        print("Fizz" * (i % 3 == 0) + "Buzz" * (i % 5 == 0) or i)'), ("prints fizzbuzz", "solves fizzbuzz", "fizzbuzz", "plays fizzbuzz")),
)  # fmt: skip


def settled(answer: str) -> str:
    """An answer with code as this model always begins and ends it: those of `bench` have three ways of each."""
    before, fence, rest = answer.partition("\n```python\n")
    code, end, _ = rest.partition("\n```\n")
    return f"{LEADS[0]}{fence}{code}{end}{TAIL}" if before in LEADS and end else answer


def code_chore(r: Random) -> Turn:
    if r.random() < 0.3:
        problem = checkable.DRAWS["code"](r)
        return Turn(problem.prompt, settled(problem.answer), fixed=True)
    chance = r.random()
    if chance < 0.45:
        function = r.choice(TEXT_FUNCTIONS)
        does = r.choice(LIKE_TEXT[function.name])
    elif chance < 0.75:
        function, does_ = r.choice(MORE_CODE)
        does = r.choice(does_)
    else:
        function = _list_function(r.choice(CONDITIONS), r.choice(MAPPED), r.choice(REDUCTIONS))
        does = function.does
    pattern = CODE + does
    if r.random() < 0.2:
        pattern = f"(python|Python|code|function|python function)(:| to| for|) {does}"
    asked = ask(r, pattern + "(.|?|)")
    return Turn(asked, f"{LEADS[0]}\n```python\n{function.code}\n```\n{TAIL}", fixed=True)


def problem_chore(r: Random) -> Turn:
    """A word problem as `bench` has it, in other surroundings."""
    story, work, result = word_problem(r)
    chance = r.random()
    lead = r.choice(
        (
            "Solve this: ",
            "Please solve: ",
            "Here is a problem. ",
            "Question: ",
            "A riddle: ",
            "Can you solve this? ",
            "Help me with this: ",
            "My homework: ",
            "",
            "",
            "",
        )
    )
    text = lead + story
    if chance < 0.3:
        text = text.lower()
    elif chance < 0.5:
        text = text[:-1]
    return Turn(text, work, str(result), work.split("\n")[0])


def article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


TALE = (
    "(Tell|Write|Read|Give|Make up|Invent|create|compose|narrate)( me| us|) (a|a short|a little|a nice|another|an|a small|a long|a funny|a sad|a good|a bedtime|a very short|a children's|an exciting|one) (story|tale|bedtime story|fairy tale|fable|story for children) (about|of|with|on) {hero}(| please| for my child| for {name}).",
    "(Can you|Could you|Would you|please|Will you) (tell|write|make up|invent)( me| us|) (a|a short|a little|a nice) (story|tale|bedtime story) (about|of|with) {hero}(?|)", "(I want|I would like|I'd like|I need|let us hear|how about) (a story|a tale|to hear a story|a short story) (about|with) {hero}(.|)", "(a |)(story|tale) (about|with) {hero}", "(do you know|have you) (a|any) (story|tale) (about|with) {hero}?", "what happened to {hero}? Tell me a story.", "once upon a time there was {hero}",
)  # fmt: skip
ANY_TALE = (
    "(Tell|Write|Read|Give|Make up|Invent|create)( me| us|) (a|a short|a little|a nice|another|any|some|a small|a long|a good|a bedtime|one|an interesting|a new) (story|tale|bedtime story|fairy tale|fable)(| please| for children| now).",
    "(Can you|Could you|Would you) (tell|write|make up)( me| us|) (a|a short|a little) (story|tale)(?|)",
    "story",
    "a story, please",
    "(I want|I'd like|I need) (a story|to hear a story)(.|)",
    "storytime",
    "do you know (a story|any stories|stories|a tale)?",
)


def tale(r: Random) -> Turn:
    if r.random() < 0.2:
        hero = "fox"
        asked = ask(r, ANY_TALE)
    else:
        hero = one_of(r, HEROES, 0.2)
        shown = r.choice((article(hero), article(hero), article(hero), f"the {hero}", hero, f"my {hero}"))
        asked = ask(r, TALE, plain=r.random() < 0.7, hero=shown, name=person(r))
    return Turn(asked, told(hero), follow=partial(after_tale, hero=hero))


def told(hero: str) -> str:
    return (
        f"Once there was {article(hero)} who lived near a quiet forest. One cold morning the {hero} found a small box under an old tree."
        f' In the box was a letter: "Come to the river, and bring a friend." So the {hero} took Mia along. At the river they found a table full of cookies,'
        f" and all the animals were there. From that day on, the {hero} was never alone."
    )


def after_tale(r: Random, hero: str) -> Turn:
    kind = r.randrange(4)
    if kind == 0:
        return Turn(
            ask(
                r,
                "(who|which animal) (was|is) (it about|in it|the hero|the story about|in the story|the main character)?",
                plain=True,
            ),
            f"The story is about {article(hero)}.",
            hero,
        )
    if kind == 1:
        return Turn(
            ask(r, "(where|in what place) (was|is) (the box|it|the letter|that box)?", plain=True),
            "The box was under an old tree.",
            "Under a tree.",
        )
    if kind == 2:
        return Turn(
            ask(r, "(what|which thing) (was|is) (in the box|in it|inside the box)?", plain=True),
            "A letter was in the box.",
            "A letter.",
        )
    other = one_of(r, HEROES, 0.2)
    asked = ask(
        r,
        (
            "(and |now |and now |)(one |another one |a story |the same |another |)(about|with) {hero}(|?|.|, please)",
            "(what about|how about|and) {hero}?",
        ),
        plain=True,
        hero=article(other),
    )
    return Turn(asked, told(other), follow=partial(after_tale, hero=other))


POEM = (
    "(Write|Make|Give me|Compose|Create|Tell me|Read me|Say|Recite|Please write|Can you write|Could you write|I want|write me|I need|do|can you make|would you write) (a|a short|another|a little|a nice|some|a small|a tiny|one|a funny|a sad|a love|a long|a beautiful) (poem|haiku|rhyme|verse|song|poetry|ballad|sonnet|limerick)(| for me| please) (about|on|of|for|with) {subject}(| please| for {name}|)(.|?|)", "(a |)(poem|haiku|rhyme|song) (about|on) {subject}(|, please|?)", "{subject}(:| -|,) (a poem|poem|poem please|write a poem)", "(rhyme|write poetry) (about|on) {subject}",
)  # fmt: skip
ANY_POEM = (
    "(Write|Make|Give me|Compose|Create|Tell me|Recite|Can you write|do you know) (a|a short|another|some) (poem|rhyme|haiku|poetry)(| please| for me)(.|)",
    "poem",
    "can you rhyme?",
)


def poem(r: Random) -> Turn:
    if r.random() < 0.15:
        subject, asked = "the moon", ask(r, ANY_POEM)
    else:
        subject = one_of(r, r.choice((SUBJECTS, SUBJECTS, HEROES, PRODUCTS, THINGS)), 0.2)
        asked = ask(r, POEM, plain=r.random() < 0.7, subject=subject, name=person(r))
    return Turn(asked, rhymed(subject), follow=partial(after_poem))


def rhymed(subject: str) -> str:
    return f"I think of {subject} every day,\nin the morning light and along the way.\nAnd when the night is quiet and deep,\nI dream of {subject} in my sleep."


def after_poem(r: Random) -> Turn:
    subject = one_of(r, r.choice((SUBJECTS, HEROES)), 0.2)
    return Turn(
        ask(
            r,
            (
                "(and |now |and now |)(one |another one |a poem |the same |)(about|on) {subject}(|?|.|, please)",
                "(what about|how about|and) {subject}?",
            ),
            plain=True,
            subject=subject,
        ),
        rhymed(subject),
        follow=after_poem,
    )


CHORES = ((6, list_chore), (5, code_chore), (2, problem_chore), (3, tale), (2, poem))


def chore(r: Random) -> Turn:
    weights, draws = zip(*CHORES, strict=True)
    turn: Turn = r.choices(draws, weights)[0](r)
    return turn
