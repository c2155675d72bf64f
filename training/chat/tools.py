"""Tools with requests for them; calls in the form `<tool_call>` of Hermes and Qwen, and answers from results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from .lexicon import (
    ADJECTIVES,
    COLORS,
    DAYS,
    PRODUCTS,
    QUERIES,
    SUBJECTS,
    TOPICS,
    city,
    email,
    made_up,
    one_of,
    person,
)  # fmt: skip
from .surface import ask
from .turn import Turn

Value = Callable[[Random], Any]


@dataclass(frozen=True, slots=True)
class Slot:
    """A parameter: its names, its JSON schema, what is said of it, and a value."""

    names: tuple[str, ...]
    kind: str
    about: tuple[str, ...]
    value: Value
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tool:
    names: tuple[str, ...]
    about: tuple[str, ...]
    slots: Mapping[str, Slot]
    wordings: tuple[str, ...]


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def number(low: int, high: int) -> Value:
    return lambda r: r.randint(low, high)


def query(r: Random) -> str:
    noun = one_of(r, r.choice((QUERIES, PRODUCTS, TOPICS)), 0.2).lower()
    return r.choice(
        (
            noun,
            f"{one_of(r, ADJECTIVES, 0.1)} {noun.removeprefix('the ')}",
            f"{noun} in {city(r)}",
            f"{one_of(r, ADJECTIVES, 0.1)} {one_of(r, QUERIES, 0.2)}",
            f"{one_of(r, PRODUCTS, 0.2)} {one_of(r, QUERIES, 0.2)}",
        )
    )


def caption(r: Random) -> str:
    word = r.choice(
        words(
            "Lunch Dinner Review Meeting Party Hello Update Report Invoice Holiday Question Standup Workshop Planning Interview Birthday Yoga Gym Budget News Thanks Reminder Training Offer Demo"
        )
    )
    return (
        made_up(r).capitalize()
        if r.random() < 0.25
        else word
        if r.random() < 0.75
        else f"{word} {r.choice(('plan', 'notes', 'today', 'time', 'list'))}"
    )


def symbol(r: Random) -> str:
    return (
        "".join(r.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(r.randint(2, 4)))
        if r.random() < 0.6
        else r.choice(words("AAPL TSLA MSFT GOOG AMZN NVDA META IBM INTC SAP"))
    )


CODES = words("USD EUR GBP JPY CHF SEK NOK DKK PLN CZK CAD AUD INR CNY BRL MXN TRY ZAR KRW")
LANGS = words("French Spanish German Italian English Dutch Polish Japanese Chinese Russian")
CITY_SLOT = Slot(
    words("city city location place town"),
    "string",
    ("Name of the city", "The city", "City name", "Where", "A city", "the town"),
    city,
)
DAY_SLOT = Slot(
    words("day day date weekday when"),
    "string",
    ("Day of the week", "The day", "The date", "Which day"),
    lambda r: r.choice((*DAYS, "today", "tomorrow")),
)
CELSIUS = Slot(
    words("unit units scale"),
    "string",
    ("Unit of temperature", "The unit"),
    lambda r: r.choice(("celsius", "fahrenheit")),
    ("celsius", "fahrenheit"),
)
MINUTES = Slot(
    words("minutes minutes duration length"),
    "integer",
    ("Length in minutes", "How long, in minutes", "Minutes"),
    number(1, 90),
)
NAME = Slot(words("name name person contact to"), "string", ("Name of the person", "The person", "Whom"), person)
CAPTION = Slot(words("title title name subject summary"), "string", ("Its title", "The title", "Name of it"), caption)
TEXT = Slot(
    words("text text message content body"),
    "string",
    ("The text", "What to say", "Content"),
    lambda r: r.choice(
        (
            query(r),
            f"buy {one_of(r, PRODUCTS, 0.2)}",
            f"I am in {city(r)}",
            f"call {person(r)}",
            f"see you on {r.choice(DAYS)}",
            f"meet {person(r)} in {city(r)}",
        )
    ),
)

TOOLS: tuple[Tool, ...] = (
    Tool(words("get_weather weather fetch_weather current_weather get_current_weather weather_lookup getWeather get_forecast check_weather"), ("Get the weather in a city", "Get the current weather", "Weather of a place", "Look up the weather", "Returns the weather for a city"), {"city": CITY_SLOT}, ("(What is|What's|How is|How's|Tell me|whats|show me|check) the weather (like |)(in|for|at) {city}(| today| now| like| right now)?", "(Is it|Does it|Will it) (raining|rain|sunny|snow|cold|windy|warm) in {city}(| today| now)?", "(weather|forecast) (in |for |){city}", "(do I need|should I take) an umbrella in {city}?", "how (cold|hot|warm) is it in {city}(| now| today)?")),
    Tool(words("get_temperature temperature read_temperature get_temp"), ("Get the temperature in a city", "Temperature of a place", "How warm it is"), {"city": CITY_SLOT, "unit": CELSIUS}, ("(How warm|How cold|How hot) is it in {city}(,| now,|) in {unit}?", "(What is|What's|Tell me|give me) the temperature in {city} in {unit}?", "temperature in {city}, {unit}", "(I want|show me) the {unit} temperature (of|in) {city}(.|)")),
    Tool(words("get_time time_in current_time get_current_time clock world_clock"), ("Get the time in a city", "Current time of a place", "Tells the local time"), {"city": CITY_SLOT}, ("(What time is it|What is the time|Tell me the time|how late is it|what's the local time) in {city}(| now| right now)?", "time in {city}", "(do you know|show me) the time in {city}?")),
    Tool(words("add add_numbers sum plus calculate_sum addition"), ("Add two numbers", "Sum of two numbers", "Adds two integers"), {"a": Slot(words("a x first"), "integer", ("First number", "A number", "The first"), number(0, 999)), "b": Slot(words("b y second"), "integer", ("Second number", "Another number", "The second"), number(0, 999))}, ("(Add|Please add|Sum|sum up|add up) {a} and {b}.", "What is {a} (+|plus) {b}?", "{a} + {b}", "{a} plus {b}", "(How much is|calculate) {a} (plus|and|+) {b}?", "use the tool to add {a} and {b}")),
    Tool(words("multiply product times multiply_numbers"), ("Multiply two numbers", "Product of two numbers"), {"a": Slot(words("a x first"), "number", ("First number", "A number"), number(0, 99)), "b": Slot(words("b y second"), "number", ("Second number", "Another number"), number(0, 99))}, ("(Multiply|Please multiply) {a} (and|by|with) {b}.", "What is {a} (times|*|x) {b}?", "{a} times {b}", "(How much is|calculate) {a} (times|*) {b}?")),
    Tool(words("send_email email send_mail mail compose_email"), ("Send an email", "Write and send an email", "Sends mail to an address"), {"to": Slot(words("to to recipient address email"), "string", ("Address", "Address of the recipient", "Email address"), email), "subject": Slot(words("subject subject title"), "string", ("Subject line", "The subject", "Subject of the mail"), caption)}, ("(Send|Write) (an|a new|one) (email|mail|message) to {to} (with the subject|about|with subject|called|titled) {subject}", "(Email|Mail|Write to) {to} (about|with the subject|the subject is|subject) {subject}(.|)", "(Please send|send) {to} (an email|a mail) (about|titled|on) {subject}")),
    Tool(words("send_message message send_sms text sms write_message notify"), ("Send a message to a person", "Send a text message", "Message somebody"), {"name": NAME, "text": TEXT}, ("(Send a message to|Write to|Message|Text) {name}: {text}", "(Tell|Write|let) {name}(| know) (that |){text}", "(send|write) {name} (the message|a message saying|the text) (\"{text}\"|{text})")),
    Tool(words("web_search search search_web google internet_search find find_online lookup"), ("Search the web", "Look something up on the internet", "Web search", "Find pages about something"), {"query": Slot(words("query query q text search_term terms keywords"), "string", ("What to look for", "The query", "Search terms", "Words to search"), query)}, ("(Search|Look|search) (the web|the internet|online|google|for me|) for {query}".replace(" |)", "|)"), "(Find|Look up|Google|Search for|search for|Search) {query}(| on the web| online| please|)", "(Look for|find me|can you look up|can you search for) {query}(|?| online)", "what does the (web|internet) say about {query}?")),
    Tool(words("set_timer timer start_timer countdown create_timer"), ("Start a timer", "Set a timer", "Counts down some minutes"), {"minutes": MINUTES}, ("(Set|Start|Make|Please set|create|I need) (a|the) (timer|countdown) (for|of|to) {minutes} (minutes|min)(.|)", "(timer|countdown)(:| for|) {minutes} minutes", "{minutes} minute timer(| please)", "wake me in {minutes} minutes", "(tell|remind|alert) me in {minutes} minutes")),
    Tool(words("stop_timer cancel_timer end_timer"), ("Stop the timer", "Cancel the timer"), {}, ("(Stop|Cancel|End|turn off|switch off) (the|my|this) timer(.| please|)",)),
    Tool(words("set_alarm alarm create_alarm wake_up"), ("Set an alarm", "Wake up at a time"), {"time": Slot(words("time time at hour"), "string", ("Time of day", "When", "Hour and minute"), lambda r: f"{r.randint(0, 23)}:{r.choice(('00', '15', '30', '45', '10', '20'))}")}, ("(Set|Make|create) (an|the|my) alarm (for|at|to) {time}", "wake me (up |)at {time}(| please|)", "alarm at {time}", "I have to get up at {time}")),
    Tool(words("play_music play music play_song play_artist start_music"), ("Play music of an artist", "Play a song", "Start music", "Plays music by somebody"), {"artist": Slot(words("artist artist name singer band musician"), "string", ("Name of the artist", "The artist", "Who sings"), lambda r: r.choice((person(r), r.choice(words("Mozart Bach Beethoven Queen Adele Madonna Prince Abba Chopin Vivaldi Shakira Rihanna Eminem Drake Sting Cher Bowie Elvis Coldplay Metallica")), made_up(r).capitalize())))}, ("(Play|Please play|play|put on|start) (something|music|a song|songs|some music|some songs|the music) (by|of|from) {artist}(| please|)", "(Play|I want to hear|let me hear|put on|listen to|I'd like to listen to) {artist}(| please| now)")),
    Tool(words("stop_music pause pause_music stop_playback"), ("Stop the music", "Pause the music", "End playback"), {}, ("(Stop|Pause|End|turn off|switch off) (the|this|my) (music|song|playback)(.| please| now|)", "(no more music|music off|silence please)")),
    Tool(words("create_event add_event schedule new_event schedule_meeting add_to_calendar calendar_add"), ("Put an event into the calendar", "Create an event", "Add an appointment", "Schedule something"), {"title": CAPTION, "day": DAY_SLOT}, ("(Put|Add|Create|Schedule|Plan|Make|enter) (a|an|the|one) (meeting|event|appointment|entry|date|call) (called|named|titled|with the title) {title} (on|for) {day}", "(Put|Add|Schedule|Plan|enter) {title} (on|for|into the calendar on|to my calendar on) {day}", "{title} on {day}, (add it|put it in the calendar|please add it to my calendar|schedule it)")),
    Tool(words("list_events events get_events show_calendar agenda calendar read_calendar"), ("List the events of a day", "Show the calendar", "Events on a day"), {"day": DAY_SLOT}, ("(What|Which events|which meetings|what appointments) (do I have|are there|is on|are planned|is planned) (on|for) {day}?", "(Show|List|Read|Give me|tell me) (my|the) (events|calendar|appointments|meetings|agenda) (of|on|for) {day}", "(am I free|am I busy|do I have time) on {day}?")),
    Tool(words("delete_event remove_event cancel_event cancel_meeting"), ("Remove an event", "Cancel an appointment", "Delete an event"), {"title": CAPTION}, ("(Delete|Remove|Cancel|Drop) (the |my )(event|meeting|appointment) {title}(.|)", "(Delete|Remove|Cancel|Drop) {title} (from my calendar|from the calendar)(.|)")),
    Tool(words("convert_currency currency exchange convert_money exchange_rate money_convert"), ("Convert money from one currency to another", "Convert an amount of money", "Exchange of currencies"), {"amount": Slot(words("amount amount value sum money"), "number", ("Amount of money", "How much", "The amount"), number(1, 2000)), "from": Slot(words("from_currency from source from_code base currency_from"), "string", ("Code of the currency", "From which currency", "Source currency"), lambda r: r.choice(CODES)), "to": Slot(words("to_currency to target to_code quote currency_to"), "string", ("Code of the other currency", "To which currency", "Target currency"), lambda r: r.choice(CODES))}, ("(Convert|Exchange|Change|Turn) {amount} {from} (to|into|in) {to}", "(How much is|How many {to} are|What is|what are) {amount} {from} in {to}?", "{amount} {from} (to|in) {to}(|?| please)")),
    Tool(words("get_stock_price stock_price stock quote get_quote price_of_stock share_price"), ("Get the price of a stock", "Stock price", "Price of a share"), {"symbol": Slot(words("symbol symbol ticker stock"), "string", ("Ticker symbol", "Symbol of the stock", "The symbol"), symbol)}, ("(What is|What's|Tell me|Show me|how much is) (the price of|the stock price of|the share price of|a share of|the value of) {symbol}(| now| today| stock)?", "(price|stock price|quote) (of|for) {symbol}", "how is {symbol} (doing|trading)(| today|)?", "(check|look up) {symbol} (stock|shares)")),
    Tool(words("translate translate_text translator translation"), ("Translate a text", "Translate text into a language"), {"text": Slot(words("text text sentence phrase input"), "string", ("The text", "What to translate"), lambda r: r.choice((query(r), f"where is {city(r)}", "good night", "I am hungry", "how much is it", f"I like {one_of(r, SUBJECTS, 0.2)}", "see you soon"))), "language": Slot(words("language target_language target to lang"), "string", ("Target language", "The language"), lambda r: r.choice(LANGS))}, ("(Translate|Please translate) (\"{text}\"|{text}) (to|into) {language}", "(How do I say|What is|say) (\"{text}\"|{text}) in {language}?")),
    Tool(words("turn_on_light light_on switch_on lights_on set_light"), ("Turn on the light in a room", "Switch a light on"), {"room": Slot(words("room room place where"), "string", ("The room", "Which room"), lambda r: r.choice(("kitchen", "bathroom", "bedroom", "living room", "garage", "hall", "office", "garden", "cellar", made_up(r))))}, ("(Turn|Switch) on the (light|lights|lamp) in the {room}", "(Turn|Switch) the {room} (light|lights) on", "(lights on|light please|make light) in the {room}", "it is dark in the {room}(|, turn on the light)")),
    Tool(words("set_temperature thermostat heat set_thermostat heating"), ("Set the temperature of the heating", "Set the thermostat"), {"degrees": Slot(words("degrees temperature value target"), "integer", ("Degrees", "Target temperature"), number(10, 30))}, ("(Set|Turn|Put) the (heating|thermostat|temperature|heater) to {degrees}(| degrees)(.|)", "(make it|I want) {degrees} degrees(| here| in here)", "heat to {degrees}(| degrees)")),
    Tool(words("create_note note add_note save_note take_note remember write_note"), ("Save a note", "Write a note", "Keep a text"), {"text": TEXT}, ("(Note|Save|Write down|Remember|take a note|Make a note|note that|new note)(:| that|:) {text}".replace("(:| that|:)", ":"), "(save|keep|add) (a note|this note): {text}")),
    Tool(words("add_task add_todo create_task todo new_task add_reminder remind create_reminder"), ("Add a task to the list", "Create a reminder", "New entry of the to-do list"), {"task": Slot(words("task task text title what"), "string", ("The task", "What to do"), lambda r: r.choice((f"buy {one_of(r, PRODUCTS, 0.2)}", f"call {person(r)}", f"clean the {r.choice(('kitchen', 'car', 'office', 'garage'))}", f"pay the {r.choice(('rent', 'bill', 'tax'))}", f"feed the {r.choice(('cat', 'dog', 'fish'))}", f"visit {person(r)}", f"read about {one_of(r, TOPICS, 0.2)}")))}, ("(Remind me to|I must not forget to|I have to|add the task|Add to my list:|New task:|todo:|add a task:|put on my list:) {task}(.|)",)),
    Tool(words("get_news news headlines fetch_news latest_news"), ("Get the news about a topic", "Latest headlines", "News on a topic"), {"topic": Slot(words("topic topic subject about query"), "string", ("The topic", "About what", "Topic of the news"), lambda r: one_of(r, TOPICS, 0.2).lower())}, ("(What is|What's|Any|Show me|Give me|Tell me|read me) (the |)(news|latest news|headlines) (about|on) {topic}(|?|.)", "(what happened|what's new) with {topic}?", "news about {topic}")),
    Tool(words("book_flight flight flights search_flights find_flight book_trip"), ("Book a flight", "Find flights between two cities", "Search flights"), {"from": Slot(words("from origin from_city departure"), "string", ("City of departure", "From where", "Origin"), city), "to": Slot(words("to destination to_city arrival"), "string", ("Destination", "To where", "City of arrival"), city)}, ("(Book|Find|I need|Get me|Search|look for) (a |)(flight|flights|trip) from {from} to {to}(.|)", "(fly|I want to fly|I have to fly|we fly|take me) from {from} to {to}(.| please|)", "flights {from} to {to}")),
    Tool(words("book_table reserve_table reservation restaurant_booking reserve"), ("Reserve a table in a restaurant", "Book a table"), {"restaurant": Slot(words("restaurant restaurant place name"), "string", ("The restaurant", "Where"), lambda r: r.choice((f"{person(r)}'s", f"Cafe {made_up(r).capitalize()}", f"The {one_of(r, COLORS)} {r.choice(('Lion', 'Door', 'Fork', 'House', 'Fish'))}".title().replace("The The", "The"), city(r)))), "people": Slot(words("people people guests persons seats"), "integer", ("Number of people", "How many"), number(1, 12))}, ("(Book|Reserve|Get) (a|us a|me a) table (at|in) {restaurant} for {people}(| people| persons)", "(table|reservation) for {people} (at|in) {restaurant}(| please)")),
    Tool(words("search_products find_product shop product_search list_products"), ("Search products in the shop", "Find products up to a price"), {"query": Slot(words("query product name keyword item"), "string", ("What to look for", "The product"), lambda r: r.choice((one_of(r, PRODUCTS, 0.2), f"{one_of(r, COLORS, 0)} {one_of(r, PRODUCTS, 0.2)}"))), "price": Slot(words("max_price price limit budget"), "number", ("Highest price", "At most so much"), number(5, 900))}, ("(Find|Show me|I need|I want|look for|search) (a|an|one) {query} (under|below|for less than|up to|for at most|cheaper than) {price}(| dollars| euros)", "{query} (under|below|up to) {price}(| dollars| euros)")),
    Tool(words("get_user user find_user lookup_user get_customer customer"), ("Get a user by number", "Look up a customer", "Data of a user"), {"id": Slot(words("id user_id number customer_id"), "integer", ("Number of the user", "The id", "Identifier"), number(1, 9999))}, ("(Show|Find|Get|Look up|who is|open|load) (the |)(user|customer|client|account) (number |with id |no |){id}(.|?|)", "(data|details|info) (of|for) (user|customer) {id}")),
    Tool(words("track_order order_status get_order where_is_order track_package"), ("Get the status of an order", "Track a package", "Where an order is"), {"id": Slot(words("order_id id number order"), "string", ("Number of the order", "Order id"), lambda r: f"{''.join(r.choice('ABCDEFGHKLMNPRSTUVWXYZ') for _ in range(r.randint(0, 2)))}{r.randint(100, 99999)}")}, ("(Where is|What about|Track|How is|check|status of|what's the status of) (my |the |)(order|package|parcel|delivery) {id}(|?|.)",)),
    Tool(words("roll_dice dice roll random_number"), ("Roll dice", "Throw some dice"), {"count": Slot(words("count n dice number"), "integer", ("How many dice", "Number of dice"), number(1, 9))}, ("(Roll|Throw|Cast) {count} (dice|die|dices)(.| please|)",)),
    Tool(words("read_file open_file load_file get_file cat"), ("Read a file", "Open a file", "Content of a file"), {"path": Slot(words("path path file filename name"), "string", ("Path of the file", "The file"), lambda r: f"{r.choice(('', '', 'docs/', 'src/', '/tmp/', made_up(r) + '/'))}{r.choice((made_up(r), 'readme', 'notes', 'main', 'data', 'report'))}.{r.choice(words('txt py md json csv log'))}")}, ("(Read|Open|Show|Print|Load|cat|display) (the file |the |){path}(.| please|)".replace(")(.|", ")(|"), "what is in {path}?", "show me (the content of |the file |){path}")),
    Tool(words("run_command shell bash execute terminal run"), ("Run a command in the shell", "Execute a shell command"), {"command": Slot(words("command command cmd line"), "string", ("The command", "What to run"), lambda r: r.choice(("ls", "pwd", "whoami", "df -h", "git status", "ls -la", "uptime", f"cat {made_up(r)}.txt", f"mkdir {made_up(r)}", f"cd {made_up(r)}", f"rm {made_up(r)}.log", "make test", f"pip install {made_up(r)}")))}, ("(Run|Execute|Type|Start)(:| the command|) {command}", "(Run|Execute) `{command}`")),
    Tool(words("get_population population city_population"), ("Get the number of people in a city", "Population of a city"), {"city": CITY_SLOT}, ("(How many people live|how many inhabitants are there) in {city}?", "(What is|Tell me) the population of {city}?", "population of {city}")),
    Tool(words("define dictionary define_word get_definition lookup_word"), ("Get the meaning of a word", "Look up a word in the dictionary"), {"word": Slot(words("word word term text"), "string", ("The word", "A word"), lambda r: one_of(r, r.choice((PRODUCTS, SUBJECTS, TOPICS)), 0.3).lower())}, ("(What does|what's the meaning of|define|explain the word|look up the word) (\"{word}\"|{word})( mean|)(?|)",)),
    Tool(words("get_distance distance route directions navigate get_route"), ("Get the distance between two cities", "Find the way from one place to another"), {"from": Slot(words("from start origin a"), "string", ("Start", "From where"), city), "to": Slot(words("to end destination b"), "string", ("End", "To where", "Goal"), city)}, ("(How far is it|What is the distance|what's the way|how do I get|distance|show me the route|directions) from {from} to {to}(|?)", "(navigate|drive|take me) from {from} to {to}")),
    Tool(words("call phone call_person dial make_call"), ("Call a person", "Make a phone call"), {"name": NAME}, ("(Call|Phone|Dial|Ring|please call|make a call to) {name}(.| now| please|)", "I (want|need) to (talk to|speak with|call) {name}(| on the phone)")),
)  # fmt: skip


def another_name(r: Random, name: str) -> str:
    """A name that no tool of training has by heart, now and then."""
    chance = r.random()
    if chance < 0.12:
        return f"{name}_{r.choice(('v2', 'tool', 'api', 'now', 'fn', made_up(r)))}"
    if chance < 0.2:
        return f"{r.choice(('do', 'my', 'run', 'api', made_up(r)))}_{name}"
    if chance < 0.25:
        first, *rest = name.split("_")
        return first + "".join(part.capitalize() for part in rest)
    if chance < 0.31:
        return made_up(r) + (f"_{made_up(r)}" if r.random() < 0.4 else "")
    return name


def drawn(r: Random, tool: Tool) -> tuple[dict[str, Any], dict[str, str]]:
    """The tool as a request of the API has it, and its parameters' names."""
    names: dict[str, str] = {}
    properties: dict[str, Any] = {}
    for key, slot in tool.slots.items():
        free = [name for name in slot.names if name not in properties] or [f"{slot.names[0]}_{len(properties)}"]
        name = r.choice(free) if r.random() < 0.7 else free[0]
        if r.random() < 0.04:
            name = made_up(r)
        names[key] = name
        spec: dict[str, Any] = {"type": slot.kind}
        if slot.choices and r.random() < 0.8:
            spec["enum"] = list(slot.choices)
        if r.random() < 0.7:
            spec["description"] = r.choice(slot.about)
        properties[name] = spec
    about = r.choice(tool.about)
    if r.random() < 0.2:
        about += "."
    function: dict[str, Any] = {"name": another_name(r, r.choice(tool.names)), "description": about}
    if properties or r.random() < 0.5:
        function["parameters"] = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": function}, names


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    body = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def offered(r: Random, wanted: Sequence[Tool]) -> tuple[list[dict[str, Any]], list[tuple[str, dict[str, str]]]]:
    """Up to four tools in any order, among them those `wanted`: of each the name and the names of its parameters."""
    count = r.choice((0, 0, 1, 1, 2, 3)) + (not wanted)
    others = [tool for tool in r.sample(TOOLS, count) if tool not in wanted]
    shown: list[dict[str, Any]] = []
    found: list[tuple[str, dict[str, str]]] = []
    for number, tool in enumerate((*wanted, *others)):
        spec, names = drawn(r, tool)
        while any(spec["function"]["name"] == other["function"]["name"] for other in shown):
            spec["function"]["name"] += f"_{made_up(r)}"
        shown.append(spec)
        if number < len(wanted):
            found.append((spec["function"]["name"], names))
    r.shuffle(shown)
    return shown, found


def tool_calls(r: Random, count: int) -> list[Turn]:
    """Requests with the calls that they need, all with the same tools."""
    wanted = r.sample(TOOLS, 1 if count == 1 else r.choice((1, 2)))
    shown, found = offered(r, wanted)
    turns = []
    for _ in range(count):
        tool, (name, names) = r.choice(list(zip(wanted, found, strict=True)))
        values = {key: slot.value(r) for key, slot in tool.slots.items()}
        asked = ask(r, tool.wordings, plain=r.random() < 0.6, **values)
        answer = call_text(name, {names[key]: value for key, value in values.items()})
        turns.append(Turn(asked, answer, fixed=True, tools=tuple(shown), follow=partial(from_result, name=name)))
    return turns


def tool_call(r: Random) -> Turn:
    return tool_calls(r, 1)[0]


def from_result(r: Random, name: str) -> Turn:
    """The answer from what a tool has returned; `ask` is its message."""
    kind = r.randrange(4)
    if kind == 0:
        value: Any = r.choice((r.randint(0, 5000), r.randint(0, 999) / 10, made_up(r), query(r), city(r)))
        return Turn(str(value), f"The result is {value}.", str(value), tools=())
    if kind == 1:
        done = r.choice(
            (
                {"ok": True},
                {"status": "ok"},
                {"success": True},
                {"status": "done"},
                "ok",
                "done",
                "sent",
                {"result": "ok"},
            )
        )
        return Turn(done if isinstance(done, str) else json.dumps(done), "Done.", "Done.")
    if kind == 2:
        failed = r.choice(
            (
                "not found",
                "no connection",
                "timeout",
                "unknown city",
                "access denied",
                "invalid argument",
                f"unknown {made_up(r)}",
            )
        )
        return Turn(json.dumps({"error": failed}), f"That did not work: {failed}.", "It failed.")
    keys = r.sample(
        words(
            "temperature condition price time result city status name total rate distance wind humidity count date value population level amount title"
        ),
        r.randint(1, 3),
    )
    data = {key: r.choice((r.randint(0, 999), r.randint(0, 999) / 10, made_up(r), r.choice(words("sunny cloudy open ready late high low new"))))
            for key in keys}  # fmt: skip
    listed = [f"{key} is {value}" for key, value in data.items()]
    joined = listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"
    return Turn(json.dumps(data), f"The {joined}.", str(next(iter(data.values()))))


def idle_tools(r: Random) -> tuple[dict[str, Any], ...]:
    """Tools that a request does not need."""
    return tuple(offered(r, ())[0])
