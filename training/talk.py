"""The subjects of the embedded models besides problems: stories, capitals, and themselves."""

from __future__ import annotations

from ..bench.load.word_problems import words

WEATHER = words("sunny rainy windy cold warm quiet foggy")
ANIMALS = words("fox owl bear cat mouse rabbit turtle horse")

# Sentences of a story, in order; the first and the last are in every story.
STORY = (
    "One {weather} morning, {a} walked to the {place}.",
    "{he} met a small {animal} there.",
    "The {animal} had lost {n} {item} and was sad.",
    '{a} said, "Do not worry, we will look together."',
    "They looked behind the {place} and under an old tree.",
    "Then {b} came by and joined them.",
    "Soon they found all {n} {item} near the gate.",
    "The {animal} was happy and thanked {a} and {b}.",
    "From that {weather} day on, the {animal} and {a} were friends.",
)

CAPITALS = tuple(
    zip(
        words(
            "France Spain Italy Germany Japan China India Egypt Kenya Brazil Peru Chile Canada Mexico Cuba Norway"
            " Sweden Finland Poland Greece Turkey Portugal Austria Hungary Ireland Iceland Thailand Vietnam Nepal"
            " Jordan"
        ),
        (name.replace("-", " ") for name in words(
            "Paris Madrid Rome Berlin Tokyo Beijing Delhi Cairo Nairobi Brasilia Lima Santiago Ottawa Mexico-City"
            " Havana Oslo Stockholm Helsinki Warsaw Athens Ankara Lisbon Vienna Budapest Dublin Reykjavik Bangkok"
            " Hanoi Kathmandu Amman"
        )),
        strict=True,
    )
)  # fmt: skip

# Ways to ask, and the one answer.
TALK: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("Hello", "Hi", "Hi there", "Hello!", "Hey"),
        (
            "Hello! I am a tiny diffusion language model. I can solve small math problems, write short Python"
            " functions, work on lists, and tell short stories."
        ),
    ),
    (
        ("Who are you?", "What are you?", "Tell me about yourself."),
        (
            "I am a tiny masked diffusion language model. I do not write from left to right: I fill in many words at"
            " once, and refine them until the answer is done."
        ),
    ),
    (
        ("What can you do?", "How can you help me?", "help"),
        (
            "I can do four things. I solve word problems step by step. I write short Python functions. I sort, reverse"
            " and copy lists. I also tell short stories."
        ),
    ),
    (("Thank you!", "Thanks", "Thank you very much."), "You are welcome! Ask me another one whenever you like."),
    (("Goodbye", "Bye", "See you later"), "Goodbye! It was nice to talk with you."),
    (
        ("How do you work?", "What is a diffusion language model?", "Explain diffusion language models."),
        (
            "A diffusion language model starts from a row of masked words. At every step it predicts all of them at"
            " once, keeps the ones it is sure about, and tries the others again. A few steps are enough for a whole"
            " paragraph."
        ),
    ),
)
