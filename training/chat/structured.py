"""Texts with the JSON that says the same, for small schemas that stand in the conversation, or that only a grammar
knows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from ..talk import CAPITALS
from .knowledge import KINDS
from .lexicon import (
    ANIMALS,
    COLORS,
    COUNTRIES,
    DAYS,
    JOBS,
    MONTHS,
    PEOPLE,
    PRODUCTS,
    SURNAMES,
    THINGS,
    city,
    email,
    made_up,
    one_of,
)  # fmt: skip
from .numbers import DIFFERENCE, PRODUCT, SUM, operand
from .surface import ask, say
from .turn import Turn

NUMBER_WORDS = {"two": 2, "three": 3, "four": 4, "five": 5}


@dataclass(frozen=True, slots=True)
class Field:
    """A value with the names that a schema may give it, best first, and its JSON schema."""

    names: tuple[str, ...]
    value: Any
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scene:
    text: str
    fields: tuple[Field, ...]


TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
REAL = {"type": "number"}
TRUTH = {"type": "boolean"}


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def full_name(r: Random) -> str:
    first = one_of(r, PEOPLE)
    return first if r.random() < 0.6 else f"{first} {one_of(r, SURNAMES)}"


def title(r: Random) -> str:
    def word() -> str:
        return one_of(r, r.choice((COLORS, PRODUCTS, ANIMALS, THINGS)), 0.3).title()

    return r.choice(
        (
            f"The {word()}",
            f"{word()} {word()}",
            f"The {word()} of {city(r)}",
            f"{word()} and {word()}",
            f"A {word()} {word()}",
            word(),
        )
    )


def person(r: Random) -> Scene:
    name, age, town, job, mail, land = (
        full_name(r),
        r.randint(2, 99),
        city(r),
        r.choice(JOBS),
        email(r),
        one_of(r, COUNTRIES, 0.1),
    )
    parts = {
        "age": (
            "is {age} years old",
            "is {age}",
            "turned {age}",
            "just turned {age} years",
            "has reached the age of {age}",
        ),
        "city": ("lives in {city}", "comes from {city}", "is from {city}", "moved to {city}", "has a flat in {city}"),
        "job": ("works as a {job}", "is a {job}", "has a job as a {job}", "earns money as a {job}"),
        "email": (
            "can be reached at {email}",
            "has the email {email}",
            "uses the address {email}",
            "writes from {email}",
        ),
        "country": ("was born in {country}", "grew up in {country}", "left {country}"),
    }
    fields = {
        "age": Field(words("age years age_years"), age, WHOLE),
        "city": Field(words("city town location home place residence"), town, TEXT),
        "job": Field(words("job profession occupation role work"), job, TEXT),
        "email": Field(words("email mail address email_address contact"), mail, TEXT),
        "country": Field(words("country nation born_in origin"), land, TEXT),
    }
    chosen = r.sample(list(parts), r.randint(1, 3))
    clauses = [r.choice(parts[kind]).format(age=age, city=town, job=job, email=mail, country=land) for kind in chosen]
    joined = clauses[0] if len(clauses) == 1 else f"{', '.join(clauses[:-1])} and {clauses[-1]}"
    text = f"{name} {joined}."
    if chosen == ["age"] and r.random() < 0.3:
        text = f"{name}, {age}."
    if chosen[0] in ("age", "city", "job") and r.random() < 0.15:
        text = "I am " + r.choice(("", "called ")) + f"{name}. My age is {age}. I live in {town}."
        chosen = ["age", "city"]
    if r.random() < 0.1 and "email" in chosen:
        text, chosen = f"{r.choice(('Contact', 'Write to', 'Please email', 'Mail'))} {name} at {mail}.", ["email"]
    return Scene(
        text, (Field(words("name full_name person who first_name"), name, TEXT), *(fields[kind] for kind in chosen))
    )


def product(r: Random) -> Scene:
    noun, color, count = one_of(r, PRODUCTS, 0.15), r.choice(COLORS), r.randint(1, 60)
    price: float = r.randint(1, 300) if r.random() < 0.75 else r.randint(100, 9999) / 100
    stock = r.random() < 0.5
    coloured = r.random() < 0.5
    name = f"{color} {noun}" if coloured else noun
    cost = r.choice(
        (
            f"costs {price} {r.choice(('dollars', 'euros', 'pounds'))}",
            f"is {price} {r.choice(('dollars', 'euros'))}",
            f"sells for {price}",
            f"is on sale for ${price}",
            f"costs ${price}",
            f"has a price of {price}",
        )
    )
    there = r.choice(
        ("is in stock", "is available", "can be had now", "is on the shelf")
        if stock
        else ("is sold out", "is not in stock", "is not available", "is out of stock")
    )
    fields = [
        Field(words("product item name article thing"), name if r.random() < 0.5 or not coloured else noun, TEXT),
        Field(
            words("price cost amount price_usd value"),
            price,
            REAL if r.random() < 0.7 or price != int(price) else WHOLE,
        ),
    ]
    if coloured and fields[0].value == noun:
        fields.append(Field(words("color colour"), color, TEXT))
    text = f"{r.choice(('The', 'A', 'Our', 'This', 'The new'))} {name} {cost}"
    kind = r.randrange(3)
    if kind == 0:
        fields.append(Field(words("in_stock available stock is_available"), stock, TRUTH))
        text += f" and {there}"
    elif kind == 1:
        fields.append(Field(words("quantity count number stock pieces"), count, WHOLE))
        text += r.choice(
            (
                f" and we have {count}",
                f", {count} are left",
                f" and there are {count} in stock",
                f". We sold {count} of them",
            )
        )
    return Scene(text + ".", tuple(fields))


def book(r: Random) -> Scene:
    name, author, year = title(r), f"{one_of(r, PEOPLE)} {one_of(r, SURNAMES)}", r.randint(1850, 2025)
    text = say(r, (
        "{kind} (\"{name}\"|{name}) (by|from) {author} (came out in|appeared in|was published in|is from|was released in) {year}.",
        "{author} (wrote|published|finished) (\"{name}\"|{name}) in {year}.", "(\"{name}\"|{name}) by {author}, {year}.",
        "In {year} {author} (wrote|published) (\"{name}\"|{name}).", "I (read|like|bought) {name} by {author} from {year}.",
    ), name=name, author=author, year=year, kind=r.choice(("The book", "The novel", "The film", "The album", "The song")))  # fmt: skip
    return Scene(
        text,
        (
            Field(words("title name book work"), name, TEXT),
            Field(words("author writer artist by creator"), author, TEXT),
            Field(words("year published released date year_published"), year, WHOLE),
        ),
    )


def trip(r: Random) -> Scene:
    a, b, day, n = (
        city(r),
        city(r),
        r.choice((*DAYS, "tomorrow", "today", f"{r.choice(MONTHS)} {r.randint(1, 30)}")),
        r.randint(1, 9),
    )
    wordings = [
        "(I want to|We want to|I would like to|Please book a trip to|I'd like to|I have to|We are going to) (travel|go|fly|drive|take the train|get) from {a} to {b}{on}{many}.", "(A|One|Book a|I need a|Find me a|Get me a) (flight|train|ticket|bus|ride|seat) from {a} to {b}{on}{many}.",
        "From {a} to {b}{on}{many}.", "(My|Our|The) (flight|train|bus) (leaves|departs from) {a} and (goes to|arrives in) {b}{on}{many}.", "We (leave|left) {a} for {b}{on}{many}.",
    ]  # fmt: skip
    dated, counted = r.random() < 0.7, r.random() < 0.25
    on = f" {day}" if day in ("tomorrow", "today") else f" on {day}"
    text = say(r, tuple(wordings), a=a, b=b, on=on if dated else "", many=f" for {n} people" if counted else "")
    fields = [
        Field(words("origin from start from_city departure source"), a, TEXT),
        Field(words("destination to end to_city arrival target goal"), b, TEXT),
    ]
    if dated:
        fields.append(Field(words("day date when travel_day departure_day"), day, TEXT))
    if counted:
        fields.append(Field(words("people passengers travellers persons seats"), n, WHOLE))
    return Scene(text, tuple(fields))


def order(r: Random) -> Scene:
    name, n, things = full_name(r), r.randint(1, 50), one_of(r, THINGS, 0.2)
    urgent = r.random() < 0.5
    text = say(
        r,
        (
            "{name} (orders|wants|ordered|buys|bought|needs|asks for|would like) {n} {things}.",
            "(Please send|Send|We shipped|Deliver) {n} {things} to {name}.",
            "Order of {name}: {n} {things}.",
            "{n} {things} for {name}.",
        ),
        name=name,
        n=n,
        things=things,
    )
    fields = [
        Field(words("customer name client buyer"), name, TEXT),
        Field(words("item product article things"), things, TEXT),
        Field(words("quantity count number amount"), n, WHOLE),
    ]
    if r.random() < 0.3:
        text += r.choice(
            (" It is urgent.", " Be quick!", " It must be there today.")
            if urgent
            else (" There is no hurry.", " It is not urgent.", " Take your time.")
        )
        fields.append(Field(words("urgent express is_urgent"), urgent, TRUTH))
    return Scene(text, tuple(fields))


def event(r: Random) -> Scene:
    what = r.choice(
        words(
            "Lunch Dinner Review Party Concert Meeting Workshop Training Standup Interview Picnic Exam Planning Retreat Yoga Lecture Match Exhibition Wedding"
        )
    )
    if r.random() < 0.25:
        what = made_up(r).capitalize()
    day, hour, place = (
        r.choice(DAYS),
        r.choice(
            (f"{r.randint(0, 23)}:{r.choice(('00', '15', '30', '45'))}", f"{r.randint(1, 12)} {r.choice(('am', 'pm'))}")
        ),
        city(r),
    )
    timed, placed = r.random() < 0.6, r.random() < 0.5
    text = say(
        r,
        (
            "(The|Our|My|Next) {what} (is|takes place|starts|will be) on {day}{at}{there}.",
            "{what} on {day}{at}{there}.",
            "(Do not forget|Remember|Come to|Please join) (the|our) {what} on {day}{at}{there}.",
            "On {day}{at} we have {what}{there}.",
        ),
        what=what,
        day=day,
        at=f" at {hour}" if timed else "",
        there=f" in {place}" if placed else "",
    )
    fields = [
        Field(words("title event name what subject"), what, TEXT),
        Field(words("day date when weekday"), day, TEXT),
    ]
    if timed:
        fields.append(Field(words("time hour start start_time"), hour, TEXT))
    if placed:
        fields.append(Field(words("place location city where"), place, TEXT))
    return Scene(text, tuple(fields))


GOOD = words(
    "great good excellent wonderful perfect fantastic lovely nice amazing beautiful delicious friendly fast helpful superb tasty comfortable"
)
BAD = words(
    "terrible bad awful horrible poor disappointing boring slow ugly rude cold broken dirty disgusting useless noisy expensive worst"
)
FAIR = words("okay average fine acceptable mediocre ordinary normal so-so usual")


def review(r: Random) -> Scene:
    kinds = ("positive", "negative", "neutral")
    kind = r.choice(("positive", "negative", "positive", "negative", "neutral"))
    known = {"positive": GOOD, "negative": BAD, "neutral": FAIR}[kind]
    thing = r.choice(
        (
            "food",
            "service",
            "movie",
            "film",
            "book",
            "hotel",
            "room",
            "staff",
            "game",
            "music",
            "product",
            "delivery",
            "pizza",
            "concert",
            "app",
            one_of(r, PRODUCTS, 0.2),
        )
    )
    words_ = r.sample(known, 2)
    more = {
        "positive": ("I love it!", "I would come again.", "Thank you!", "Highly recommended.", "I am very happy."),
        "negative": (
            "I hate it.",
            "Never again.",
            "I want my money back.",
            "Do not buy it.",
            "I am very disappointed.",
        ),
        "neutral": ("Nothing special.", "It is what it is.", "It does its job.", "Neither good nor bad."),
    }[kind]
    text = say(
        r,
        (
            "The {thing} (was|is) {w}( and {v}|).",
            "(This|My) {thing} is (really |very |just |){w}.",
            "What (a|an) {w} {thing}!",
            "{more}",
            "The {thing} (was|is) {w}. {more}",
            "(Very |Really |){w} {thing}.",
        ),
        thing=thing,
        w=words_[0],
        v=words_[1],
        more=r.choice(more),
    )
    if r.random() < 0.5:
        text = f'"{text}"'
    if r.random() < 0.5:
        text = (
            r.choice(
                (
                    "Is this review positive or negative? ",
                    "What is the sentiment of this review? ",
                    "Classify the sentiment: ",
                    "Review: ",
                    "How does the writer feel? ",
                    "Sentiment of: ",
                    "Rate this text: ",
                    "Is this good or bad? ",
                )
            )
            + text
        )
    order_ = list(kinds)
    r.shuffle(order_)
    options = order_ if kind == "neutral" or r.random() < 0.6 else [k for k in order_ if k != "neutral"]
    return Scene(
        text,
        (Field(words("sentiment label feeling mood class opinion rating"), kind, {"type": "string", "enum": options}),),
    )


def number_list(r: Random) -> Scene:
    xs = [r.randint(0, 99) for _ in range(r.randint(2, 5))]
    things = [one_of(r, THINGS, 0.15) for _ in xs]
    listed = [f"{x} {thing}" for x, thing in zip(xs, things, strict=True)]
    names = words("numbers values ints list data")
    joined = ", ".join(listed[:-1]) + f" and {listed[-1]}" if r.random() < 0.6 else ", ".join(map(str, xs))
    lead = r.choice(
        (
            "we have ",
            "she bought ",
            "there are ",
            "I see ",
            "they found ",
            "we lost ",
            "",
            "",
            "the box holds ",
            "he counted ",
        )
    )
    text = (
        r.choice(
            (
                "The numbers of this text: ",
                "Which numbers are in this text? ",
                "Find all numbers: ",
                "Extract the numbers: ",
                "",
                "List the numbers: ",
            )
        )
        + lead
        + joined
        + r.choice((".", ""))
    )
    chance = r.random()
    if chance < 0.7:
        return Scene(text, (Field(names, xs, {"type": "array", "items": WHOLE}),))
    return (
        Scene(text, (Field(words("items things objects nouns"), things, {"type": "array", "items": TEXT}),))
        if listed[0] in text
        else Scene(text, (Field(names, xs, {"type": "array", "items": REAL}),))
    )


def sum_result(r: Random) -> Scene:
    kind = r.randrange(3)
    a, b = operand(r), operand(r)
    if kind == 1:
        a, b = max(a, b), min(a, b)
    if kind == 2:
        a, b = r.randint(0, 12), r.randint(0, 12)
    value = (a + b, a - b, a * b)[kind]
    text = ask(r, (SUM, DIFFERENCE, PRODUCT)[kind], plain=True, a=a, b=b)
    fields = [Field(words("result answer sum value total number difference"), value, r.choice((WHOLE, REAL)))]
    if r.random() < 0.2:
        fields = [Field(("a", "first", "left"), a, WHOLE), Field(("b", "second", "right"), b, WHOLE), *fields]
    return Scene(text, tuple(fields))


def kinds_list(r: Random) -> Scene:
    name = r.choice([kind for kind in KINDS if kind not in ("numbers", "colors")])
    count = r.choice(list(NUMBER_WORDS))
    n = NUMBER_WORDS[count]
    items = KINDS[name].split(", ")[:n]
    text = ask(
        r,
        "(Name|List|Give me|Tell me|Write|Say|I need) {many} {name}(.|)",
        plain=True,
        many=count if r.random() < 0.7 else n,
        name=name,
    )
    schema: dict[str, Any] = {"type": "array", "items": TEXT}
    if r.random() < 0.4:
        schema |= {"minItems": n, "maxItems": n}
    return Scene(text, (Field((name, "items", "list", "names", "values"), items, schema),))


def place(r: Random) -> Scene:
    if r.random() < 0.4:
        land, town = r.choice(CAPITALS)
        if r.random() < 0.5:
            return Scene(
                ask(r, ("(What is|Name|Tell me) the capital of {land}?", "capital of {land}"), plain=True, land=land),
                (Field(words("capital city answer"), town, TEXT),),
            )
    else:
        land, town = one_of(r, COUNTRIES, 0.15), city(r)
    text = say(
        r,
        (
            "(We|I|They|She|My parents) (flew|went|travelled|moved|drove|came) to {town} in {land}.",
            "{town} is (a city|a town|a place) in {land}.",
            "(Greetings|Best wishes|Hello) from {town}, {land}!",
            "(I live|We live|He lives|She works) in {town}, {land}.",
            "(The meeting|The concert|Our hotel|The office) is in {town} in {land}.",
            "{town}, {land}",
        ),
        town=town,
        land=land,
    )
    if r.random() < 0.4:
        text += r.choice(
            (" Where is it?", " Which city and country is it?", " What place is that?", " Find the place.")
        )
    return Scene(
        text,
        (Field(words("city town place location"), town, TEXT), Field(words("country nation land state"), land, TEXT)),
    )


def weather(r: Random) -> Scene:
    town, degrees, sky = (
        city(r),
        r.randint(-15, 40),
        r.choice(words("sunny cloudy rainy windy snowy foggy clear stormy")),
    )
    text = say(
        r,
        (
            "(Today it|It) is {n} degrees and {sky} in {town}.",
            "{town}: {n} degrees, {sky}.",
            "In {town} (we have|there are) {n} degrees and it is {sky}.",
            "The weather in {town} is {sky} with {n} degrees.",
        ),
        n=degrees,
        sky=sky,
        town=town,
    )
    return Scene(
        text,
        (
            Field(words("city place location town"), town, TEXT),
            Field(words("temperature degrees temp celsius"), degrees, r.choice((WHOLE, REAL))),
            Field(words("condition weather sky conditions"), sky, TEXT),
        ),
    )


def pet(r: Random) -> Scene:
    name, kind, age = one_of(r, PEOPLE, 0.4), r.choice(ANIMALS), r.randint(1, 20)
    text = say(
        r,
        (
            "(My|Our|Her|His) {kind} (is called|is named) {name} and is {age} years old.",
            "{name} is a {kind} of {age} years.",
            "{name} the {kind} is {age}.",
            "I have a {kind}. (Its|His|Her) name is {name}. (It|He|She) is {age}.",
        ),
        name=name,
        kind=kind,
        age=age,
    )
    return Scene(
        text,
        (
            Field(words("name pet pet_name"), name, TEXT),
            Field(words("animal species kind type"), kind, TEXT),
            Field(words("age years"), age, WHOLE),
        ),
    )


def message(r: Random) -> Scene:
    name, mail, urgent = full_name(r), email(r), r.random() < 0.5
    lead = r.choice(
        ("Urgent: ", "This is urgent: ", "As soon as possible, ", "Important! ", "Right now: ", "Hurry up, ")
        if urgent
        else ("No hurry: ", "When you have time, ", "Some day, ", "", "Not urgent: ", "Whenever you like, ")
    )
    text = lead + say(
        r,
        (
            "please (call|write to|answer|contact|email|reply to) {name}, (the|his|her|their) (email|address|mail) is {mail}.",
            "(call|write to|answer|contact|email|reply to) {name} at {mail}.",
            "{name} waits for an answer at {mail}.",
        ),
        name=name,
        mail=mail,
    )
    return Scene(
        text,
        (
            Field(words("name sender contact who"), name, TEXT),
            Field(words("email mail address"), mail, TEXT),
            Field(words("urgent important is_urgent priority_high"), urgent, TRUTH),
        ),
    )


def truth(r: Random) -> Scene:
    n, word = r.randint(0, 99), r.choice(("even", "odd"))
    if r.random() < 0.5:
        return Scene(
            ask(r, ("Is {n} {word}?", "is {n} an {word} number?"), plain=True, n=n, word=word),
            (Field((f"is_{word}", "answer", "result", word, "true"), (n % 2 == 0) == (word == "even"), TRUTH),),
        )
    a, b = r.randint(0, 99), r.randint(0, 99)
    return Scene(
        ask(r, ("Is {a} (larger|bigger|greater) than {b}?",), plain=True, a=a, b=b),
        (Field(("answer", "result", "larger", "is_larger"), a > b, TRUTH),),
    )


SCENES: tuple[Callable[[Random], Scene], ...] = (
    person, person, person, product, product, book, book, trip, trip, order, event, review, number_list, sum_result, kinds_list, place, place, weather, pet, message, truth,
)  # fmt: skip
NESTED = words("person details data info customer item contact user entry record")
BEFORE = (
    "{text} (Answer as JSON.|As JSON.|Write it as JSON.|Give me JSON.|JSON please|Return JSON.|Give {keys} as JSON.|Reply in JSON.|Extract {keys} as JSON.|Make JSON of it.|In JSON.|Put it into JSON.|Answer in JSON with {keys}.|Give the {keys} in JSON.|JSON with {keys}.|Output JSON.)",
)
AFTER = (
    "(Extract {keys} from this text|Turn this into JSON|As JSON|Give me JSON of this|Give {keys} as JSON|JSON|Extract the data|Extract as JSON|Return JSON with {keys}|Find {keys}|What are {keys}|Write as JSON|Parse this|Convert to JSON|Make JSON with {keys}|Extract|Read this and give {keys}|Get {keys} from|Put this into JSON|Answer as JSON)(:|: |.) {text}",
)
SHOWN = (
    "(Answer|Reply|Respond|Always answer) (with|in|as) JSON (of this schema|that follows this schema|with this schema|for the schema|like this)(:|: |:\n){schema}",
    "(Use|Follow|Fill in) this (schema|JSON schema|form)(:|: |:\n){schema}",
    "JSON schema: {schema}",
    "Extract JSON: {schema}",
    "Only JSON. Schema: {schema}",
    "{schema}",
)


def plain_schema(schema: dict[str, Any]) -> Any:
    """A schema as people write it: {"name": string, ...}."""
    kind = schema.get("type")
    if kind == "object":
        return {name: plain_schema(part) for name, part in schema["properties"].items()}
    if "enum" in schema:
        return " | ".join(schema["enum"])
    return [plain_schema(schema["items"])] if kind == "array" else kind


def an_object(fields: list[tuple[str, Field]], strict: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The value of named fields, and its schema."""
    value = {name: field.value for name, field in fields}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: field.schema for name, field in fields},
        "required": list(value),
    }
    if strict:
        schema["additionalProperties"] = False
    return value, schema


def named(r: Random, fields: tuple[Field, ...], free: bool) -> list[tuple[str, Field]]:
    """Fields with names that differ; `free`: not only the best ones."""
    found: dict[str, Field] = {}
    for field in fields:
        names = [name for name in field.names if name not in found]
        if names:
            found[r.choice(names) if free else names[0]] = field
    return list(found.items())


def structured(r: Random) -> tuple[str, Turn]:
    """A system message, which may be empty, and the turn."""
    scene = r.choice(SCENES)(r)
    fields = list(scene.fields)
    if r.random() < 0.35:
        r.shuffle(fields)
    if len(fields) > 1 and r.random() < 0.3:
        fields = fields[: r.randint(1, len(fields))]
    kind = r.choices(("hidden", "keys", "system", "user"), (0.4, 0.2, 0.2, 0.2))[0]
    chosen = named(r, tuple(fields), r.random() < (0.6 if kind == "hidden" else 0.7))
    value, schema = an_object(chosen, r.random() < 0.5)
    if len(chosen) > 2 and r.random() < 0.15:
        inner, inner_schema = an_object(chosen[:2], False)
        outer, outer_schema = an_object(chosen[2:], False)
        key = next(name for name in r.sample(NESTED, len(NESTED)) if name not in outer)
        value = {key: inner, **outer}
        schema = {
            **outer_schema,
            "properties": {key: inner_schema, **outer_schema["properties"]},
            "required": list(value),
        }
    answer = json.dumps(value, ensure_ascii=False)
    text = scene.text
    names = [name.replace("_", " ") if r.random() < 0.7 else name for name, _ in chosen]
    keys = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    keys = r.choice(("", "the ", "")) + keys
    if r.random() < 0.1:
        text = text.lower() if all(isinstance(v, int | float | bool) for v in value.values()) else text.rstrip(".")
    if kind == "hidden":
        opened = 2  # only a grammar can know that JSON is wanted
        if r.random() < 0.45:
            opened = 0
            text = say(
                r, r.choice((BEFORE, AFTER)), text=text, keys=r.choice(("the data", "it", "them", "this", keys, keys))
            )
        return "", Turn(text, answer, fixed=True, opened=opened)
    if kind == "keys":
        before = tuple(p.replace("As JSON.|", "").replace("JSON please|", "") for p in BEFORE)
        return "", Turn(say(r, r.choice((before, AFTER)), text=text, keys=keys), answer, fixed=True)
    written = json.dumps(schema if r.random() < 0.6 else plain_schema(schema), ensure_ascii=False)
    shown = say(r, SHOWN, schema=written)
    if kind == "system":
        return shown, Turn(text, answer, fixed=True)
    return "", Turn(f"{shown}\n{text}" if r.random() < 0.5 else f"{text}\n{shown}", answer, fixed=True)
