"""Text of prompts and answers: tokenizer, detokenizer, log-probabilities and lane events."""


def counted(number: int, noun: str, ending: str = "s") -> str:
    """Return a number with its noun: `1 lane`, but `2 lanes`."""
    return f"{number} {noun}{'' if number == 1 else ending}"
