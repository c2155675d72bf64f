"""Names, things and topics; and words that no language has, so that a model learns to copy and not to know by heart."""

from __future__ import annotations

from random import Random

from ...bench.load.word_problems import ITEMS, NAMES
from ...bench.load.word_problems import words as split

PEOPLE = NAMES + split(
    "Anna Peter Maria John Sarah David Laura Michael Julia Thomas Sofia Daniel Emma Lucas Olivia Noah Ava Liam Elena"
    " Marco Priya Raj Chen Wei Yuki Kenji Fatima Ahmed Ali Sam Alex Chris Max Lisa Kate Jane Bob Alice Charlie Eve"
    " Frank Grace Henry Isla James Karen Linda Mark Nina Oscar Pam Quinn Rosa Steve Tina Uma Victor Wendy Xavier Yara"
    " Zack Igor Olga Pedro Juan Carmen Luis Pierre Marie Hans Greta Sven Astrid Andre Bianca Diego Hugo Irene Jorge"
    " Klaus Lars Milan Nadia Otto Paula Rita Samir Theo Ursula Vera Walter Amir Leila Hassan Aisha Kofi Amara"
)
SURNAMES = split(
    "Smith Brown Miller Cole Jones Garcia Silva Meyer Weber Fischer Rossi Novak Kim Lee Wong Singh Khan Patel Cohen"
    " Moreau Dubois Jansen Berg Lind Olsen Kowalski Petrov Ivanova Sato Tanaka Baker Carter Evans Foster Gray Hill"
    " Irving Keller Lopez Morgan Nolan Owens Price Reed Stone Taylor Vance Ward Young"
)
CITIES = split(
    "Paris London Berlin Madrid Rome Vienna Lisbon Oslo Dublin Athens Warsaw Prague Budapest Stockholm Helsinki Zurich"
    " Geneva Munich Hamburg Cologne Milan Naples Venice Florence Barcelona Seville Porto Lyon Nice Brussels Amsterdam"
    " Rotterdam Copenhagen Tokyo Kyoto Osaka Seoul Beijing Shanghai Delhi Mumbai Bangkok Hanoi Jakarta Manila Sydney"
    " Melbourne Auckland Cairo Nairobi Lagos Accra Tunis Boston Chicago Denver Seattle Houston Dallas Miami Atlanta"
    " Toronto Montreal Vancouver Havana Lima Bogota Quito Santiago Brasilia Recife Istanbul Ankara Dubai Doha Tehran"
    " Kiev Riga Vilnius Tallinn Sofia Bern Graz Salzburg Leipzig Dresden Bremen Bonn"
)
COUNTRIES = split(
    "France Spain Italy Germany Japan China India Egypt Kenya Brazil Peru Chile Canada Mexico Cuba Norway Sweden Finland"
    " Poland Greece Turkey Portugal Austria Hungary Ireland Iceland Thailand Vietnam Nepal Jordan England Scotland"
    " Belgium Denmark Romania Bulgaria Serbia Croatia Ukraine Russia Korea Malaysia Indonesia Australia Argentina"
    " Colombia Bolivia Ecuador Morocco Tunisia Ghana Nigeria Ethiopia Israel Iran Iraq Pakistan"
)
THINGS = ITEMS + split(
    "oranges bananas pears cars bikes dogs cats birds toys pens chairs lamps cups plates forks spoons shirts hats shoes"
    " socks candies sweets cakes pizzas sandwiches tomatoes potatoes carrots lemons grapes plums nuts stones keys phones"
    " letters photos pictures songs games tools bottles boxes bags rings trees fish sheep ducks hens kites drums"
    " notebooks crayons magnets badges"
)
PRODUCTS = split(
    "lamp chair table phone laptop keyboard mouse screen camera printer radio clock watch bag backpack jacket shirt hat"
    " scarf bike helmet tent book notebook pen mug bottle kettle toaster pan knife sofa bed pillow blanket mirror"
    " carpet vase guitar piano drum ball racket puzzle doll robot drone cable charger speaker headset ladder hammer drill"
)
COLORS = split("red blue green yellow black white brown grey orange purple pink silver golden dark light")
DAYS = split("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = split("January February March April May June July August September October November December")
JOBS = split(
    "teacher doctor nurse engineer lawyer farmer baker pilot driver writer painter singer actor chef waiter cook"
    " plumber carpenter mechanic dentist scientist programmer designer manager student librarian gardener tailor"
)
ANIMALS = split(
    "fox owl bear cat mouse rabbit turtle horse dog wolf lion tiger elephant monkey penguin whale dolphin shark frog"
    " snake bee ant spider duck goose hen cow pig goat sheep camel giraffe zebra hedgehog squirrel parrot eagle crow"
    " crocodile kangaroo panda koala dinosaur unicorn"
)
HEROES = ANIMALS + split(
    "robot wizard pirate princess prince knight king queen giant witch ghost fairy astronaut alien detective farmer"
    " sailor boy girl child baker teacher cook snowman monster mermaid soldier doctor king elf dwarf clown ninja train"
    " car tree star cloud river mountain computer teapot balloon little-girl brave-knight old-man young-woman lost-dog"
    " tiny-robot magic-cat small-ship"
)
SUBJECTS = split(
    "spring summer winter rain snow love friendship the-sea the-moon the-sun the-stars my-cat my-dog flowers trees"
    " mountains rivers the-night the-morning coffee tea music school my-mother my-garden the-city the-wind birds"
    " time dreams hope home the-forest the-ocean bread apples computers robots the-sky peace war the-future cheese"
    " trains clouds books a-rose an-old-house the-desert happiness silence fire water"
)
TOPICS = split(
    "relativity gravity electricity magnetism photosynthesis evolution genetics DNA cells atoms molecules black-holes"
    " galaxies planets the-sun the-moon Mars Jupiter volcanoes earthquakes climate-change global-warming the-ocean"
    " dinosaurs mammals insects viruses bacteria vaccines the-brain the-heart the-immune-system blood sleep dreams"
    " memory psychology philosophy ethics religion God Buddhism Islam Christianity Hinduism democracy capitalism"
    " socialism communism economics inflation taxes the-stock-market bitcoin blockchain cryptocurrency banks money"
    " machine-learning neural-networks transformers artificial-intelligence deep-learning computers the-internet"
    " wifi bluetooth databases SQL operating-systems Linux Windows Java JavaScript Rust compilers algorithms"
    " cryptography quantum-computers semiconductors robots cars engines airplanes rockets bridges trains ships"
    " the-Roman-Empire ancient-Egypt the-French-Revolution World-War-II World-War-I the-Cold-War the-Renaissance"
    " Napoleon Einstein Newton Darwin Shakespeare Mozart Beethoven Picasso Leonardo-da-Vinci Plato Aristotle Caesar"
    " Cleopatra Gandhi Lincoln Obama Elon-Musk Steve-Jobs Bill-Gates Taylor-Swift the-Beatles Messi Ronaldo"
    " Harry-Potter Star-Wars Hamlet Romeo-and-Juliet the-Bible the-Mona-Lisa the-Eiffel-Tower the-Great-Wall"
    " football basketball tennis chess golf cricket the-Olympics yoga running swimming cycling hiking camping fishing"
    " gardening cooking baking pasta pizza sushi bread cheese chocolate coffee tea wine beer salad soup curry pancakes"
    " diets vitamins protein calories weight-loss muscles photography painting music guitar piano jazz opera poetry"
    " novels movies anime video-games Minecraft cats dogs horses parrots sharks whales elephants bees spiders trees"
    " roses mushrooms deserts rainforests mountains rivers glaciers Africa Asia Europe America Antarctica Australia"
    " California New-York Paris London Tokyo Venice marriage love friendship happiness stress anxiety depression"
    " school university exams homework jobs interviews resumes email marketing sales startups management leadership"
    " calculus algebra geometry statistics probability logic prime-numbers pi infinity entropy energy light sound"
    " heat time space mass water fire air oil gas coal gold silver iron diamonds plastic paper glass concrete"
    " solar-panels batteries electric-cars nuclear-power wind-turbines chemistry biology physics astronomy history"
    " geography linguistics grammar Latin Greek Chinese Spanish cancer diabetes flu asthma allergies teeth eyes skin"
    " hair bones surgery medicine hospitals law courts police prisons elections parliaments constitutions the-UN NATO"
    " the-EU string-theory consciousness free-will dark-matter tides rainbows lightning thunder tornadoes hurricanes"
)
VERBS = split(
    "build fix clean paint cook bake grow learn study draw write sell buy repair install open close train teach use"
    " make find choose measure store wash cut plant play read remove prepare start stop improve change move connect"
    " update delete print scan plan organize design test"
)
ADJECTIVES = split(
    "big small old new cheap expensive fast slow hot cold good bad best nice important popular famous dangerous safe"
    " healthy strong heavy light deep high long short blue green red rare common difficult easy strange beautiful"
)
QUERIES = split(
    "flights hotels restaurants recipes shoes jobs news museums concerts tickets books laptops phones apartments cars"
    " bikes jackets toys games courses doctors parks beaches trains cafes gyms plants movies songs lamps shops"
)
ONSETS = split("b c d f g h j k l m n p r s t v w z br cl dr fl gr kr pl pr sh st tr th ch")
VOWELS = split("a e i o u a e i o ai ea ou")
CODAS = ("", "", "", "n", "r", "l", "s", "t", "m", "nd", "x", "ck")


def made_up(r: Random, syllables: int = 0) -> str:
    """A word of so many syllables, 2 or 3 by default, in lower case."""
    return "".join(
        r.choice(ONSETS) + r.choice(VOWELS) + r.choice(CODAS) for _ in range(syllables or r.choice((2, 2, 3)))
    )


def one_of(r: Random, known: tuple[str, ...], made: float = 0.25) -> str:
    """A known word, or with chance `made` one that does not exist, in the same case; hyphens are spaces."""
    word = r.choice(known)
    if r.random() < made:
        return made_up(r).capitalize() if word[0].isupper() else made_up(r)
    return word.replace("-", " ")


def person(r: Random) -> str:
    return one_of(r, PEOPLE)


def city(r: Random) -> str:
    return one_of(r, CITIES)


def topic(r: Random) -> str:
    """Something that the model knows nothing of."""
    word = one_of(r, TOPICS, 0.15)
    chance = r.random()
    if chance < 0.1:
        return f"{r.choice(ADJECTIVES)} {word.removeprefix('the ')}"
    if chance < 0.15:
        return f"{word} and {one_of(r, TOPICS, 0.15)}"
    return word.lower() if chance < 0.3 else word


def email(r: Random) -> str:
    user = one_of(r, PEOPLE).lower() + r.choice(("", "", f".{one_of(r, SURNAMES).lower()}", str(r.randint(1, 99))))
    return f"{user}@{r.choice((made_up(r), 'example', 'mail', 'work'))}.{r.choice(('com', 'org', 'net', 'de', 'io'))}"
