"""Capitals, words, days and small facts; and jokes."""

from __future__ import annotations

from functools import partial
from random import Random

from ..talk import CAPITALS
from .lexicon import DAYS, MONTHS, made_up
from .surface import ask
from .turn import Turn

CAPITAL = (
    "(What is|What's|Name|Tell me|Do you know|Give me|whats|say|I need|which is|can you tell me|what was) the (capital|capital city|main city) of {country}?",
    "(Which|What) (city|town|place) is the (capital|capital city|seat of government) of {country}?", "{country}'s capital(|?|, please| city|city?)", "capital of {country}", "capital (city |)of {country}?",
    "(What is|What's|whats|Name) {country}'s (capital|capital city)?", "{country} capital", "(the |){country}: (capital|what is its capital|which capital|capital city)?", "(What|Which) capital (does|has) {country}( have|)?", "what is called the capital of {country}?", "(Where|In which city) (is|does) the government of {country}( sit|)?", "what's the name of the capital (of|in) {country}?", "I want to know the capital of {country}.", "how is the capital of {country} called?",
)  # fmt: skip
CAPITAL_NEXT = (
    "(and|And|and what is|what about|and that|how about|what is that|now|and now|ok, and) (of|the one of|for|the capital of|in|) {country}?",
    "{country}?",
    "and {country}",
    "(what|how) about {country}?",
    "(the same|now the same) for {country}",
)
COUNTRY_OF = (
    "{capital} is the capital of (which|what) country?",
    "(Which|What) country has the capital {capital}?",
    "(Of which country is|what country is|Where is|in which country is) {capital}( the capital|)?",
    "(In which|in what) country (is|lies) {capital}?",
)


def capital(r: Random) -> Turn:
    country, city = r.choice(CAPITALS)
    return _capital(r, country, city, CAPITAL)


def _capital(r: Random, country: str, city: str, wordings: tuple[str, ...]) -> Turn:
    shown = country.lower() if r.random() < 0.15 else country
    answer = f"The capital of {country} is {city}."

    def follow(r: Random) -> Turn:
        if r.random() < 0.2:
            return Turn(
                ask(
                    r,
                    (
                        "(which|what) country (was|is) (that|it|this)( again|)?",
                        "(of|in) which country( is it| is that|)?",
                        "where is that?",
                    ),
                    plain=True,
                ),
                f"{city} is in {country}.",
                country,
            )
        return _capital(r, *r.choice(CAPITALS), CAPITAL_NEXT)

    languages = (
        ("French", f"La capitale : {city}."),
        ("Spanish", f"La capital: {city}."),
        ("German", f"Die Hauptstadt: {city}."),
        ("Italian", f"La capitale: {city}."),
    )
    return Turn(
        ask(r, wordings, plain=wordings is CAPITAL_NEXT, country=shown),
        answer,
        city,
        f"I have learnt that {city} is the capital of {country}.",
        follow,
        languages,
    )


def country_of(r: Random) -> Turn:
    country, city = r.choice(CAPITALS)
    return Turn(
        ask(r, COUNTRY_OF, capital=city), f"{city} is the capital of {country}.", country, follow=partial(_next_country)
    )


def _next_country(r: Random) -> Turn:
    country, city = r.choice(CAPITALS)
    return Turn(
        ask(r, ("and {capital}?", "what about {capital}?", "{capital}?"), plain=True, capital=city),
        f"{city} is the capital of {country}.",
        country,
        follow=_next_country,
    )


# English, French, Spanish, German, Italian.
LANGUAGES = ("French", "Spanish", "German", "Italian")
WORDS = tuple(
    tuple(row.split("/"))
    for row in (
        "hello/bonjour/hola/hallo/ciao", "goodbye/au revoir/adiós/auf Wiedersehen/arrivederci", "thank you/merci/gracias/danke/grazie", "good morning/bonjour/buenos días/guten Morgen/buongiorno",
        "good evening/bonsoir/buenas tardes/guten Abend/buonasera", "good night/bonne nuit/buenas noches/gute Nacht/buonanotte", "please/s'il vous plaît/por favor/bitte/per favore", "yes/oui/sí/ja/sì", "no/non/no/nein/no",
        "sorry/pardon/perdón/Entschuldigung/scusa", "cat/chat/gato/Katze/gatto", "dog/chien/perro/Hund/cane", "water/eau/agua/Wasser/acqua", "bread/pain/pan/Brot/pane", "milk/lait/leche/Milch/latte", "house/maison/casa/Haus/casa",
        "tree/arbre/árbol/Baum/albero", "book/livre/libro/Buch/libro", "friend/ami/amigo/Freund/amico", "love/amour/amor/Liebe/amore", "sun/soleil/sol/Sonne/sole", "moon/lune/luna/Mond/luna", "red/rouge/rojo/rot/rosso",
        "blue/bleu/azul/blau/blu", "green/vert/verde/grün/verde", "black/noir/negro/schwarz/nero", "white/blanc/blanco/weiß/bianco", "one/un/uno/eins/uno", "two/deux/dos/zwei/due", "three/trois/tres/drei/tre", "four/quatre/cuatro/vier/quattro",
        "five/cinq/cinco/fünf/cinque", "ten/dix/diez/zehn/dieci", "today/aujourd'hui/hoy/heute/oggi", "tomorrow/demain/mañana/morgen/domani", "man/homme/hombre/Mann/uomo", "woman/femme/mujer/Frau/donna", "child/enfant/niño/Kind/bambino",
        "apple/pomme/manzana/Apfel/mela",
        "big/grand/grande/groß/grande", "small/petit/pequeño/klein/piccolo", "good/bon/bueno/gut/buono", "welcome/bienvenue/bienvenido/willkommen/benvenuto", "I love you/je t'aime/te quiero/ich liebe dich/ti amo", "how are you/comment ça va/cómo estás/wie geht es dir/come stai", "fish/poisson/pez/Fisch/pesce", "bird/oiseau/pájaro/Vogel/uccello", "horse/cheval/caballo/Pferd/cavallo", "flower/fleur/flor/Blume/fiore", "city/ville/ciudad/Stadt/città", "car/voiture/coche/Auto/macchina", "door/porte/puerta/Tür/porta", "table/table/mesa/Tisch/tavolo",
    )
)  # fmt: skip
TRANSLATE = (
    "(Translate|translate|Please translate|Can you translate) (the word |)('{word}'|\"{word}\"|{word}) (to|into|in) {language}.", "(How do I say|How do you say|How would you say|How does one say|how to say|how can I say) ('{word}'|\"{word}\"|{word}) in {language}?",
    "(What is|What's|whats|Tell me) ('{word}'|\"{word}\"|{word}) in {language}?", "(Say|Write|tell me|give me) ('{word}'|\"{word}\"|{word}) in {language}.", "(What is|tell me) the {language} (word|translation|expression) (for|of) ('{word}'|\"{word}\"|{word})?", "{word} in {language}", "{language} for (\"{word}\"|{word})?", "(Do you know|I need) ('{word}'|\"{word}\"|{word}) in {language}(.|?|)",
    "(what does|what do) (the |){language}(s| people|) say for {word}?",
)  # fmt: skip


def translation(r: Random) -> Turn:
    row, place = r.choice(WORDS[:10] if r.random() < 0.5 else WORDS), r.randrange(4)
    return _translation(r, row, place, TRANSLATE)


def _translation(r: Random, row: tuple[str, ...], place: int, wordings: tuple[str, ...]) -> Turn:
    language = LANGUAGES[place]
    word = row[0] if r.random() < 0.8 else row[0].capitalize()
    shown = language.lower() if r.random() < 0.2 else language

    def follow(r: Random) -> Turn:
        other = r.choice([n for n in range(4) if n != place])
        if r.random() < 0.7:
            return _translation(
                r,
                row,
                other,
                (
                    "(and|And|and now|now|what about|and how is it|how about|ok, and) (in|in|to|into) {language}?",
                    "in {language}?",
                    "(now|and) {language}(|?)",
                    "{language}?",
                    "the same in {language}",
                    "and (in |){language}, (please|then|now|too)?",
                ),
            )
        return _translation(
            r,
            r.choice(WORDS),
            place,
            ("and {word}?", 'what about ("{word}"|{word})?', '(and|now) ("{word}"|{word})(|?)', "{word}?"),
        )

    return Turn(
        ask(r, wordings, plain=len(wordings) != len(TRANSLATE), word=word, language=shown),
        f'"{row[0]}" in {language} is "{row[place + 1]}".',
        row[place + 1],
        follow=follow,
    )


OPPOSITES = tuple(pair.split("/") for pair in (
    "hot/cold big/small good/bad fast/slow high/low long/short old/new rich/poor light/dark full/empty open/closed happy/sad hard/soft early/late near/far right/wrong left/right up/down in/out day/night black/white"
    " strong/weak wet/dry clean/dirty cheap/expensive easy/difficult loud/quiet thick/thin wide/narrow young/old alive/dead true/false first/last before/after always/never love/hate win/lose start/stop buy/sell"
).split())  # fmt: skip
SOUNDS = tuple(
    pair.split("/")
    for pair in "cat/meow dog/woof cow/moo sheep/baa pig/oink duck/quack horse/neigh hen/cluck lion/roar bee/buzz frog/croak mouse/squeak owl/hoot snake/hiss wolf/howl crow/caw goat/maa".split()
)
PLURALS = tuple(
    pair.split("/")
    for pair in "mouse/mice child/children man/men woman/women foot/feet tooth/teeth goose/geese ox/oxen sheep/sheep fish/fish leaf/leaves knife/knives city/cities box/boxes baby/babies wolf/wolves person/people dog/dogs cat/cats house/houses apple/apples bus/buses".split()
)
FACTS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("(How many|what number of) days (are in|are there in|has|does have|are) (a|one|the|each) week?", "days (in|of) a week?"), "A week has seven days.", "Seven"),
    (("(How many) (months) (are in|are there in|has|make) (a|one|the) year?",), "A year has twelve months.", "Twelve"),
    (("(How many) days (are in|are there in|has|make) (a|one|the) year?",), "A year has 365 days, and a leap year 366.", "365"),
    (("(How many) hours (are in|are there in|has|make) (a|one|the) day?",), "A day has 24 hours.", "24"),
    (("(How many) minutes (are in|are there in|has|make) (a|an|one|the) hour?",), "An hour has 60 minutes.", "60"),
    (("(How many) seconds (are in|are there in|has|make) (a|one|the) minute?",), "A minute has 60 seconds.", "60"),
    (("(How many) letters (are in|are there in|has|does have) the (alphabet|English alphabet)?",), "The English alphabet has 26 letters.", "26"),
    (("(What|Which) (color|colour) (is|has) (the |a clear |)sky(| on a clear day)?", "(what is|tell me) the (color|colour) of the sky?"), "The sky is blue.", "Blue"),
    (("(What|Which) (color|colour) (is|has) (the |)(grass|leaf)?", "(what is|tell me) the (color|colour) of (the |)grass?"), "Grass is green.", "Green"),
    (("(What|Which) (color|colour) (is|has) (the |)snow?", "(what is|tell me) the (color|colour) of (the |)snow?"), "Snow is white.", "White"),
    (("(What|Which) (color|colour) (is|are|has) (a |the |)(banana|bananas|lemon|lemons)?",), "It is yellow.", "Yellow"),
    (("(What|Which) (color|colour) (is|are|has) (a |the |)(tomato|tomatoes|strawberry|blood)?",), "It is red.", "Red"),
    (("(How many) legs (has|does) (a|an|the) spider( have|)?",), "A spider has eight legs.", "Eight"),
    (("(How many) legs (has|does) (a|an|the) (dog|cat|cow|horse|sheep)( have|)?",), "It has four legs.", "Four"),
    (("(How many) legs (has|does) (a|an|the) (ant|bee|fly|beetle)( have|)?",), "It has six legs.", "Six"),
    (("(How many) legs (has|does) (a|an|the) (bird|hen|duck|man|human)( have|)?",), "It has two legs.", "Two"),
    (("(How many) (continents) (are there|exist|are on earth|does the earth have)?",), "There are seven continents.", "Seven"),
    (("(How many) (seasons) (are there|exist|has a year|are in a year)?", "(Name|List|What are) the (four |)seasons."), "There are four seasons: spring, summer, autumn and winter.", "Four"),
    (("(How many) (planets) (are there|exist|has the solar system|are in the solar system|does the solar system have)?",), "There are eight planets.", "Eight"),
    (("(What is|What's|Name) the (largest|biggest) (ocean)(| of the world| on earth)?", "(Which|what) ocean is the (largest|biggest)?"), "The Pacific is the largest ocean.", "The Pacific"),
    (("(What is|What's|Name) the (largest|biggest) (planet)(| of the solar system|)?", "(Which|what) planet is the (largest|biggest)?"), "Jupiter is the largest planet.", "Jupiter"),
    (("(What is|What's|Name) the (highest|tallest) (mountain)(| of the world| on earth)?", "(Which|what) mountain is the (highest|tallest)?"), "Mount Everest is the highest mountain.", "Mount Everest"),
    (("(What is|What's|Name) the (largest|biggest) (animal)(| of the world| on earth)?", "(Which|what) animal is the (largest|biggest)?"), "The blue whale is the largest animal.", "The blue whale"),
    (("(What|Which) (is|do you call|are) (frozen water|water that is frozen)?", "what does water become when it freezes?"), "Frozen water is ice.", "Ice"),
    (("(What|Which) (do bees make|is made by bees|comes from bees)?",), "Bees make honey.", "Honey"),
    (("(Say|Write|Recite|Give me|What is|list|tell me|spell) the (alphabet|ABC|letters of the alphabet|English alphabet).",), "a b c d e f g h i j k l m n o p q r s t u v w x y z", ""),
    (("(Name|List|Tell me|Give me|What are|Say) the (days|seven days|days of the week|weekdays|week days)( in order|).",), "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday.", ""),
    (("(Name|List|Tell me|Give me|What are|Say) the (months|twelve months|months of the year)( in order|).",), "January, February, March, April, May, June, July, August, September, October, November, December.", ""),
)  # fmt: skip
KINDS = {
    "fruits": "apple, banana, orange, pear, lemon", "colours": "red, blue, green, yellow, black", "colors": "red, blue, green, yellow, black", "animals": "dog, cat, horse, bear, fox",
    "vegetables": "carrot, potato, tomato, onion, bean", "countries": "France, Spain, Italy, Japan, Brazil", "cities": "Paris, Rome, Berlin, Tokyo, Lima", "birds": "owl, duck, eagle, crow, parrot", "names": "Mia, Tom, Lena, Omar, Ruth", "numbers": "1, 2, 3, 4, 5", "drinks": "water, milk, tea, coffee, juice", "planets": "Mercury, Venus, Earth, Mars, Jupiter", "letters": "a, b, c, d, e", "sports": "football, tennis, golf, chess, swimming", "capitals": "Paris, Madrid, Rome, Berlin, Tokyo", "trees": "oak, pine, birch, palm, maple", "languages": "English, French, Spanish, German, Italian", "shapes": "circle, square, triangle, star, cube", "flowers": "rose, tulip, lily, daisy, violet", "pets": "dog, cat, rabbit, fish, hamster",
}  # fmt: skip
COUNTS = {"two": 2, "three": 3, "four": 4, "five": 5, "2": 2, "3": 3, "4": 4, "5": 5, "some": 3, "a few": 3, "one": 1}


def words(r: Random) -> Turn:
    kind = r.choice((0, 0, 1, 2, 3, 4, 6, 6, 7, 7))
    if kind == 0:
        one, other = r.choice(OPPOSITES)
        return Turn(
            ask(
                r,
                (
                    "(What is|What's|Tell me|Give me|Name) the (opposite|contrary) of (\"{word}\"|'{word}'|{word})?",
                    "opposite of {word}",
                    "(what's|what is) the antonym of {word}?",
                ),
                word=one,
            ),
            f'The opposite of "{one}" is "{other}".',
            other,
        )
    if kind == 1:
        animal, sound = r.choice(SOUNDS)
        return Turn(
            ask(
                r,
                (
                    "(What|Which) (sound|noise) does (a|the|an) {animal} make?",
                    "(What|how) does (a|the) {animal} (say|sound|do|make)?",
                    "what is the sound of (a|the) {animal}?",
                ),
                animal=animal,
            ),
            f"The {animal} says {sound}.",
            sound.capitalize() + "!",
        )
    if kind == 2:
        one, other = r.choice(PLURALS)
        return Turn(
            ask(
                r,
                ("(What is|What's|Tell me|Give me) the plural of (\"{word}\"|'{word}'|{word})?", "plural of {word}"),
                word=one,
            ),
            f'The plural of "{one}" is "{other}".',
            other,
        )
    if kind == 3:
        known, period = r.choice(((DAYS, "day"), (MONTHS, "month")))
        at, after = r.randrange(len(known)), r.random() < 0.6
        other = known[(at + (1 if after else -1)) % len(known)]
        return Turn(
            ask(
                r,
                (
                    "(What|Which) {period} (comes|is|follows) {word} {day}?",
                    "the {period} {word} {day}?",
                    "what {period} do we have {word} {day}?",
                ),
                period=period,
                word="after" if after else "before",
                day=known[at],
            ),
            f"{'After' if after else 'Before'} {known[at]} comes {other}.",
            other,
        )
    if kind == 4:
        word = r.choice(r.choice(WORDS)).split()[0].lower()
        return Turn(
            ask(
                r,
                (
                    "(Write|Say|Print|Repeat|Put|type) (\"{word}\"|'{word}'|{word}) in (capitals|upper case|capital letters|uppercase|big letters).",
                    "(capitalise|uppercase) {word}",
                ),
                word=word,
            ),
            word.upper(),
            word.upper(),
        )
    if kind == 6:
        word = " ".join(made_up(r) if r.random() < 0.4 else r.choice(WORDS)[0] for _ in range(r.randint(1, 4)))
        return Turn(
            ask(
                r,
                (
                    "(Repeat|Say|Write|Please say|Please repeat|echo|Print|Answer with|reply with|just say|can you say|copy)( after me|)(:|) (\"{word}\"|'{word}'|{word})",
                ),
                plain=True,
                word=word,
            ),
            word,
            word,
        )
    name, how_many = r.choice(list(KINDS)), r.choice(list(COUNTS))
    items = KINDS[name].split(", ")[: COUNTS[how_many]]
    shown = (
        name if COUNTS[how_many] > 1 else {"countries": "country", "cities": "city"}.get(name, name.removesuffix("s"))
    )
    asked = ask(
        r,
        (
            "(Name|List|Give me|Tell me|Say|I need|can you name|write|show me|do you know|think of) {many} {name}.",
            "{many} {name}",
            "what are {many} {name}?",
        ),
        many=how_many,
        name=shown,
    )
    wording = f"{', '.join(items)}."
    return Turn(asked, wording[:1].upper() + wording[1:], wording.rstrip("."))


def fact(r: Random) -> Turn:
    asks, answer, short = r.choice(FACTS)
    return Turn(ask(r, asks), answer, short)


JOKES = (
    "Why did the model cross the road? It was not sure, so it masked the road and guessed.",
    "Why was six afraid of seven? Because seven eight nine!",
    "What do you call a bear without teeth? A gummy bear!",
    "Why do bees hum? Because they do not know the words!",
)
JOKE = (
    "(Tell|Give|Say|Show|write|read|sing)( me| us|) (a|another|one|some|your best|a funny|a good|a short|a really good|a silly|a clean|a quick|any) (joke|jokes|pun|one-liner|funny joke|riddle).", "(Do you know|Do you have|Got|have you got|know|can you tell|can you tell me|could you tell me|can you make|would you tell me|can you do) (a|any|some|a good|a funny) (joke|jokes|puns)?", "(Make|make) me (laugh|smile|happy).", "(Say|Tell me|write|do you know|tell us) something (funny|to laugh about|to make me laugh|amusing|hilarious|to cheer me up).", "joke", "joke please", "a joke!", "(I want|I need|I'd like|let's hear|how about|I would like) (a joke|a laugh|to hear a joke|to laugh|something funny)(.|?|)", "cheer me up", "be funny", "entertain me", "a joke about {topic}(|, please|?)", "(tell me |)a joke about {topic}", "amuse me",
)  # fmt: skip
MORE = (
    "(another|one more|another one|more|again|one more joke|another joke|next|the next one|a different one|a new one|tell me another|tell me one more|tell me another one|do you know another|do you have more|got another one|more jokes|and another|give me another|a better one|encore|do you know more)(|!|.|?)",
    "(that was|that's|this is) (not funny|funny|good|bad|boring|old|great|hilarious)(,|.) (another|one more|next|again|another one|tell me another|more)(|!|.)",
    "(haha|lol|ok|nice|good)(,|.|!) (another|one more|another one|next|more)(|!|.)",
)


def joke(r: Random) -> Turn:
    return _joke(r, 0, JOKE)


def _joke(r: Random, number: int, wordings: tuple[str, ...]) -> Turn:
    asked = ask(
        r,
        wordings,
        plain=r.random() < 0.6,
        topic=made_up(r) + "s"
        if r.random() < 0.3
        else r.choice(("cats", "dogs", "computers", "school", "robots", "food", "math", "animals")),
    )
    return Turn(
        asked,
        JOKES[number],
        why="It is a play on words.",
        follow=partial(_joke, number=(number + 1) % len(JOKES), wordings=MORE),
    )


def yes_or_no(r: Random) -> Turn:
    """Simple claims that can be checked."""
    if r.random() < 0.5:
        country, city = r.choice(CAPITALS)
        _, said = (country, city) if r.random() < 0.5 else r.choice(CAPITALS)
        yes = said == city
        asked = ask(
            r,
            (
                "Is {said} the capital of {country}?",
                "{said} is the capital of {country}, (right|isn't it|correct|true)?",
                "(is the|is) capital of {country} {said}?",
            ),
            said=said,
            country=country,
        )
        return Turn(asked, f"{'Yes' if yes else 'No'}, the capital of {country} is {city}.", "Yes" if yes else "No")
    a, b = r.randint(0, 60), r.randint(0, 40)
    said = str(a + b if r.random() < 0.5 else a + b + r.choice((-2, -1, 1, 2, 10)))
    yes = int(said) == a + b
    asked = ask(
        r,
        (
            "(Is|Does) {a} + {b} (equal |equal to |)(=|) {said}?",
            "{a} + {b} (is|=|makes) {said}, (right|correct|true|isn't it)?",
            "(is it true that|is) {a} (plus|and|+) {b} (is |)(equal to |){said}?",
        ),
        a=a,
        b=b,
        said=said,
    )
    return Turn(asked, f"{'Yes' if yes else 'No'}, {a} + {b} = {a + b}.", "Yes" if yes else "No")


KNOWLEDGE = ((5, capital), (1.5, country_of), (7, translation), (5, words), (5, fact), (2, joke), (2, yes_or_no))


def knowledge(r: Random) -> Turn:
    weights, draws = zip(*KNOWLEDGE, strict=True)
    turn: Turn = r.choices(draws, weights)[0](r)
    return turn
