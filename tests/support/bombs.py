"""Bodies that cost a careless server far more than their bytes. Each is HTTP 400, from 70 kB to the limit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

CHAT, COMPLETION, TOKENIZE, DETOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"
Bomb = tuple[str, Callable[[int], bytes]]  # a path, and a body of about so many bytes


def filled(start: str, item: str, size: int, end: str = "]", between: str = ",") -> bytes:
    """A body with as many items as fit."""
    text = '{"model":"tiny-llada",' + start
    count = (size - len(text.encode()) - len(end) - 1) // len((item + between).encode())
    return (text + between.join([item] * count) + end + "}").encode()


def named(start: str, item: str, size: int, end: str = "}") -> bytes:
    """A body with as many names as fit, each another one."""
    text = '{"model":"tiny-llada",' + start
    count = (size - len(text) - len(end) - 1) // (len(item) + 11)
    return (text + ",".join(f'"{at:07}":{item}' for at in range(count)) + end + "}").encode()


def long_name(start: str, item: str, size: int, end: str = "]") -> bytes:
    """Half of the body is a name, the other half a list that it has."""
    return filled(start + '"' + "k" * (size // 2) + '":[', item, size, end)


def once(start: str, size: int, unit: str = "a", end: str = '"') -> bytes:
    """A body with one long text."""
    return filled(start, unit, size, end, between="")


def tool(size: int) -> bytes:
    """A tool whose property has a long name and a long list of values."""
    return long_name('"messages":[],"tools":[{"type":"function","function":{"parameters":{', '""', size, "]}}}]")


USER = '"messages":[{"role":"user","content":'
HI = USER + '"Hi"}],'
NO_MESSAGES = '"messages":['
PROMPT = '"prompt":"a",'

BOMBS: dict[str, Bomb] = {
    "a long name over a list of texts": (CHAT, partial(long_name, "", '""')),
    "a long name over a list of numbers that are not finite": (CHAT, partial(long_name, "", "NaN")),
    "a long name twice": (CHAT, lambda size: filled("", '"' + "k" * (size // 2 - 40) + '":1', size, "")),
    "a tool with a long name": (CHAT, tool),
    "numbers for messages": (CHAT, partial(filled, NO_MESSAGES, "1")),
    "objects for messages": (CHAT, partial(filled, NO_MESSAGES, "{}")),
    "messages with a wrong name": (CHAT, partial(filled, NO_MESSAGES, '{"role":"user","content":"","x":1}')),
    "empty messages": (CHAT, partial(filled, NO_MESSAGES, '{"role":"user","content":""}')),
    "numbers for content": (CHAT, partial(filled, USER + "[", "1", end="]}]")),
    "empty parts": (CHAT, partial(filled, USER + "[", '{"type":"text","text":""}', end="]}]")),
    "a long message": (CHAT, partial(once, USER + '"', end='"}]')),
    "a long message of emoji": (CHAT, partial(once, USER + '"', unit="\N{DUCK}", end='"}]')),
    "a long message of escapes": (CHAT, partial(once, USER + '"', unit="\\u00e9", end='"}]')),
    "numbers for choices": (COMPLETION, partial(filled, PROMPT + '"guided_choice":[', "1")),
    "many choices": (COMPLETION, partial(filled, PROMPT + '"guided_choice":[', '"a"')),
    "empty prompts": (COMPLETION, partial(filled, '"prompt":[', "[]")),
    "prompts of one id": (COMPLETION, partial(filled, '"prompt":[', "[7]")),
    "prompts of one letter": (COMPLETION, partial(filled, '"prompt":[', '"a"')),
    "a prompt of ids": (COMPLETION, partial(filled, '"prompt":[', "7")),
    "ids and one text": (COMPLETION, partial(filled, '"prompt":["a",', "7")),
    "a prompt of wrong ids": (COMPLETION, partial(filled, '"prompt":[', "-7")),
    "a long prompt": (COMPLETION, partial(once, '"prompt":"')),
    "a long suffix": (COMPLETION, partial(once, PROMPT + '"suffix":"')),
    "long integers": (COMPLETION, partial(filled, PROMPT + '"seed":[', "9" * 4000)),
    "fractions": (COMPLETION, partial(filled, PROMPT + '"x":[', "1.5")),
    "a long fraction": (COMPLETION, partial(once, PROMPT + '"seed":0.', unit="3", end="")),
    "integers": (COMPLETION, partial(filled, PROMPT + '"x":[', "1")),
    "lists": (COMPLETION, partial(filled, PROMPT + '"x":[', "[]")),
    "objects": (COMPLETION, partial(filled, PROMPT + '"x":[', "{}")),
    "small objects": (COMPLETION, partial(filled, PROMPT + '"x":[', '{"a":1}')),
    "nulls": (COMPLETION, partial(filled, PROMPT + '"x":[', "null")),
    "texts": (COMPLETION, partial(filled, PROMPT + '"x":[', '"\xe9a"')),
    "quotes": (COMPLETION, partial(once, PROMPT + '"x":"', unit='\\"')),
    "brackets in a text": (COMPLETION, partial(once, PROMPT + '"x":"', unit='[\\",')),
    "unknown names": (CHAT, partial(named, HI[:-1] + ",", "1", end="")),
    "metadata": (CHAT, partial(named, HI + '"metadata":{', "1")),
    "metadata with a long text": (CHAT, partial(once, HI + '"metadata":{"a":"', end='"}')),
    "biases": (CHAT, partial(named, HI + '"logit_bias":{', '"1"')),
    "stop strings": (CHAT, partial(filled, HI + '"stop":[', "1")),
    "stop tokens": (CHAT, partial(filled, HI + '"stop_token_ids":[', '"1"')),
    "a schema of many values": (CHAT, partial(filled, HI + '"guided_json":{"enum":[', "1", end="]}")),
    "a schema as a long text": (CHAT, partial(once, HI + '"guided_json":"', unit=" ")),
    "a schema with many names": (CHAT, partial(named, HI + '"guided_json":{"properties":{', "{}", end="}}")),
    "a long expression": (CHAT, partial(once, HI + '"guided_regex":"')),
    "a long role": (CHAT, partial(once, '"messages":[{"content":"Hi","role":"', end='"}]')),
    "a long name in a message": (CHAT, partial(once, '"messages":[{"content":"Hi","', end='":1}]')),
    "a long user": (CHAT, partial(once, HI + '"user":"')),
    "a long decoder": (CHAT, partial(once, HI + '"decoder":"')),
    "a long decoding parameter": (CHAT, partial(once, HI + '"lookahead":"')),
    "a decoding parameter of many values": (CHAT, partial(filled, HI + '"steps":[', "1")),
    "an unsupported parameter of many values": (CHAT, partial(filled, HI + '"functions":[', "1")),
    "ids of no token": (DETOKENIZE, partial(filled, '"tokens":[', "-1")),
    "ids of tokens": (DETOKENIZE, partial(filled, '"tokens":[', "7")),
    "a long text to tokenize": (TOKENIZE, partial(once, '"prompt":"')),
    "a long chat to tokenize": (TOKENIZE, partial(once, USER + '"', end='"}]')),
}
