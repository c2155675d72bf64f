"""Questions that the model cannot answer, and how it says so."""

from __future__ import annotations

from random import Random

from .lexicon import ADJECTIVES, DAYS, PRODUCTS, QUERIES, VERBS, city, made_up, one_of, person, topic
from .smalltalk import CAN
from .surface import ask
from .turn import Turn

ONLY = f"I only know {CAN}."
CITY = "(| in {city}| in {city} today| for {city}| here| outside| near {city}| there)"

LIMITS: tuple[tuple[float, tuple[str, ...], str], ...] = (
    (
        2,
        (
            f"(What is|What's|How is|How's|Tell me|what will be|Do you know|whats|show me) the (weather|temperature|forecast|weather like|weather forecast|weather now){CITY}(| today| tomorrow| now| this week| on {{day}}| tonight)?",
            "(Will it|Does it|is it going to|Is it|did it) (rain|snow|be sunny|be cold|be warm|be hot|raining|snowing|sunny|cold|storm)(| in {city}| tomorrow| today| on {day}| this weekend| outside)?",
            "(Do I need|should I take|shall I take|will I need) (an umbrella|a coat|a jacket|sunglasses)(| today| tomorrow| on {day}| in {city})?",
            "(weather|forecast|temperature|weather report)(| in| for) {city}(|?)",
            "how (cold|warm|hot) is it(| in {city}| outside| today)?",
            "weather(| today|?)",
        ),
        f"I cannot know the weather. {ONLY}",
    ),
    (
        2,
        (
            "(Who|Which team|what team) (won|lost|wins|will win|is winning|won the last|is going to win) (the match|the game|the election|the world cup|the race|the final|the championship|last night|the cup|the Olympics|the league|in {city}|on {day}|the debate|the tournament|the war|the oscars)(| yesterday| last week| on {day}| today| last year| this year| last night|)?",
            "(What|Which things|what all) (happened|is happening|is going on|is new|happens|went on)(| today| yesterday| in {city}| in the world| on {day}| last week| this week| right now| recently| in politics)?",
            "(What are|Tell me|Show me|Give me|any|Do you have|read me) (the |today's |)(news|latest news|headlines|latest headlines|breaking news|sports news|scores|results)(| today| from {city}| of today| please|)(.|?)",
            "(Who is|Who's) the (president|prime minister|king|queen|chancellor|mayor|leader|CEO|boss|head|champion|richest person|pope)(| of {city}| of {topic}| now| at the moment| right now)?",
            "what is the (score|result|stock price|price of bitcoin|exchange rate|price of {topic}|dollar rate|bitcoin price)(| now| today|)?",
            "(news|latest news|football results)(|?)",
            "(when|where) is the next (game|match|election|concert|holiday|world cup|train|bus|flight)(| in {city}| to {city}|)?",
            "did (anything|something) happen (today|yesterday|in {city})?",
        ),
        f"I do not know what happens in the world. {ONLY}",
    ),
    (
        2,
        (
            "(What|which) (time|date|day|year|month|weekday) (is it|do we have|is it today|do we have today|is today|is this)(| in {city}| right now|)?",
            "(What is|What's|Tell me|do you know|give me) (the time|the date|today's date|the current time|the current date|the day|the current year|the day today|what day it is|what time it is)(| in {city}| please| now)?",
            "(time|date|clock|the time)(|?)",
            "(What|which) day (is|was|will be) (tomorrow|yesterday|today)?",
            "how late is it(| now| in {city})?",
            "(How long|how many days)( is it|) (until|till|to) (Christmas|{day}|summer|my birthday|the weekend|new year|easter)?",
            "is (today|it) {day}?",
            "(set|start) (an alarm|a timer|a reminder)(| for {n} minutes| for {n}|)(.|)",
            "remind me (to|about) {topic}(.|)",
        ),
        f"I have no clock and no calendar, so I cannot know that. {ONLY}",
    ),
    (
        2,
        (
            "(I have|I've got|My child has|My son has|my {relative} has|She has|he has) (a |an |)(fever|cold|cough|pain|stomach ache|toothache|sore throat|back pain|rash|flu|broken arm|broken leg|infection|migraine|sore knee|bad cough|runny nose|high blood pressure|burn|cut|allergy|nosebleed|cramp)(. |, )(what (should|can|do|must) (I|we) (do|take|eat|use)|what helps|which medicine helps|what to do|is it bad|should I worry|is it dangerous|do I need a doctor|help|any advice|what would you do)(|?|.)",
            "(What|Which) (medicine|pill|drug|pills|treatment|remedy|tea) (helps|should I take|is good|can I take|do I need|works) (for|against|with) (a |)(fever|cold|cough|pain|headaches|stomach ache|flu|infection|{topic}|allergies|migraine)?",
            "(My|my) (head|back|stomach|knee|tooth|throat|eye|ear|leg|arm|neck|belly|foot|finger|chest|shoulder) (hurts|aches|is swollen|is sore|is burning|feels strange)(.| a lot.| very much.| badly.|, what should I do?|, what can I do?|. help|. What helps?|)",
            "how (do I|can I|to) (cure|treat|heal|get rid of) (a |my |)(fever|cold|cough|pain|flu|infection|{topic}|insomnia|anxiety|acne|burn|wound)?",
            "(am I|is my {relative}) (sick|ill|pregnant|healthy|dying)?",
            "(what are|tell me) the symptoms of {topic}?",
            "(is|are) {topic} (healthy|bad for me|good for my health|dangerous for me|unhealthy|poisonous)?",
            "(how many|how much) (calories|sugar|protein|fat|vitamins) (are|is) in {topic}?",
            "I (feel|am) (sick|ill|dizzy)(,|.) what (should|can) I (do|take)?",
            "(I need|give me) (medical|health) (advice|help)(.|)",
        ),
        f"I cannot give medical advice: please see a doctor. {ONLY}",
    ),
    (
        2,
        (
            "(Write|Make|Create|Program|Code|build|Give me|develop) (a |an |me a |some |the |)(website|app|game|web page|server|SQL query|C program|Java class|HTML page|JavaScript function|bash script|regex|web scraper|React component|snake game|chess engine|neural network|calculator app|database|Rust program|CSS file|API|login page|todo app|Go program|Excel formula|discord bot|shell script|android app|class in Java|compiler|tetris|C++ program|php script|Kotlin app|program in C|SQL table|docker file|makefile)(| for {topic}| that shows {topic}| about {topic}| please| for me| in Python| with a button| for my shop| to store {topic}|)(.|)",
            "(Fix|Debug|Refactor|Explain|Review|improve|optimise) (this|my|the|this piece of) (code|program|bug|script|error|function|query|class|website)(|: {word}|.|?)",
            "(What|How) (does|do|is|can|should) (git|docker|kubernetes|SQL|an API|a pointer|HTML|a class|recursion|Linux|npm|pip|React|CSS|async|a docker container|regex|a thread|TCP|a database)( mean| work| do| used for| I install|)?",
            "(How do I|How can I|How to) (install|use|learn|uninstall|configure|update) (python|docker|linux|git|node|windows|SQL|java|this server|a database|kubernetes|numpy|pytorch|ubuntu|an app)?",
            "(Write|give me|make) (code|a program|a script)(| that| which| to) (draws|sends|downloads|opens|trains|plays|renders|sends emails with|shows|scrapes|downloads) {topic}(.|)",
        ),
        f"I can only write short Python functions on texts and lists of numbers. {ONLY}",
    ),
    (
        2,
        (
            "(Translate|Please translate|Can you translate|translate for me)(:|) (this text|this sentence|this|the following|my letter|this document|the text|this page|this article|these sentences|my essay|this email|a letter|this book) (to|into) (French|Spanish|German|Chinese|Japanese|English|Russian|Arabic|Italian|Dutch)(|: {long}|.|?)",
            "(Translate|How do you say|How do I say|what is|say)(:|) (\"{long}\"|'{long}'|{long}) in (French|Spanish|German|Italian|Chinese|Japanese|Russian|Arabic|Korean|Polish|Turkish|Dutch)(.|?|)",
            '(Translate|Please translate) ("{long}"|{long}) (to|into) (French|Spanish|German|Italian|Chinese|Japanese|Russian|Arabic)(.|)',
        ),
        f"I cannot translate texts, only a few words. {ONLY}",
    ),
    (
        3,
        (
            "(Recommend|Suggest|Tell|Show|give|name|find)( me| us|) (a |some |any |the best |a good |good |an interesting |a nice |another |a great |one )(movie|film|book|song|restaurant|hotel|series|game|laptop|phone|podcast|present|gift|recipe|wine|band|album|place to visit|museum|car|bike|school|TV show|show|documentary|novel|movies|films|books|songs|restaurants|games|hotels|dishes|{product}|playlist|holiday place|actor|dish|drink|cafe|shop|course|app|website)(| for {relative}| in {city}| for tonight| about {topic}| to read| to watch| for a child| near me| for the weekend| please| for me| to buy| for a date)(.|?|)",
            "(What|Which) (movie|film|book|song|restaurant|hotel|series|game|laptop|phone|car|bike|{product}|present|wine|show|music) (should I|can I|do you recommend|would you|is best to|shall I|is good to|can you recommend)( watch| read| buy| visit| play| choose| take| hear| drink| get|)(| tonight| today| in {city}| next|)?",
            "(What|Where) (should|can|could|shall) (I|we) (eat|cook|watch|read|buy|do|visit|go|drink|wear|study|play|see)(| tonight| today| in {city}| this weekend| for dinner| on {day}| on my birthday| tomorrow|)?",
            "(I want to|I would like to|help me|I need to) (buy|book|order|rent|reserve|find|get) (a |)(flight|hotel|table|pizza|taxi|ticket|{product}|room|car|train ticket|doctor|job|flat|house|dentist)(| in {city}| to {city}| for {day}| for two|)(.|)",
            "(order|book|buy|call)( me|) (a |an |some |)(pizza|taxi|hotel|ticket|flight|{product}|table|uber|doctor|cab)(| in {city}| to {city}| for me|)(.|)",
            "is (the |)(movie|film|book|song) {topic} (good|worth it|any good|boring)?",
            "where (can|do) I (buy|find|get) (a |)({product}|{topic})(| in {city})?",
            "what('s| is) a good (movie|film|book|song|restaurant|gift|present|place|game|hobby)(| to watch| for {relative}| in {city}|)?",
        ),
        f"I do not know films, books, shops or places. {ONLY}",
    ),
    (
        2,
        (
            "(What is|What's|tell me|do you know|explain|whats) the (meaning|purpose|sense|point|secret|goal|reason|essence) of (everything|existence|our life|my life|love|the universe|being|all|human life|happiness|living|this world|death)?",
            "(Is there|Does|do you believe in) (a |)(God|heaven|life after death|exist|free will|love|aliens|ghosts|magic|destiny|santa claus|fate|the devil|life on Mars)( exist|)?",
            "(Why|how come) (are we here|do we exist|is there something|do people die|do we live|is life so hard|are people bad|is the world unfair|do I exist|do we dream|are we alive|is there evil)?",
            "(What|who) (is|happens) (love|truth|beauty|happiness|after death|consciousness|reality|justice|freedom|God|the soul|time|nothing|evil|fate)?",
            "(Should I|should we|is it good to|would you|Is it ok to) (marry|quit my job|get a dog|move to {city}|have children|invest in {topic}|buy {topic}|vote|study {topic}|trust {name}|lie|break up|call {name}|learn {topic}|go to {city}|eat {topic}|become a {word})?",
            "(What do you think|What is your opinion|your opinion|how do you feel|what's your view|what are your thoughts)( about| of| on) {topic}?",
            "(who|what) (is|are) better, {topic} or {topic2}?",
            "(do you|don't you) (like|love|hate|prefer|believe in|enjoy) {topic}( or {topic2}|)?",
            "{topic} or {topic2}?",
            "give me (some |)(advice|life advice|wisdom)(.| on {topic}.|)",
            "(will|when will) (I|we|he|she|AI|robots|humans) (be rich|die|be happy|find love|win|rule the world|take our jobs|be famous|live on Mars|end|go extinct)?",
        ),
        f"That is too hard for me, I have no opinion. {ONLY}",
    ),
    (
        10,
        (
            "(Explain|Describe|Define|Summarize|Summarise|Teach me|Please explain|Can you explain|Could you explain|explain me|Outline|Discuss|introduce me to) {topic}(| to me| in simple words| simply| in one sentence| for children| briefly| in detail| please| like I am five| in simple terms| in short| for beginners| step by step| in plain English| to a child| in a few words)(.|?|)",
            "(What is|What are|What's|whats|what exactly is|Do you know|do you know about|what do you know about|what about|have you heard of|what does {topic} mean, or) {topic}(|, exactly| exactly| really| good for| made of| used for| about)?",
            "(Tell|Teach|Show) me (about|something about|everything about|all about|more about|a fact about|facts about|a bit about|the story of|the history of|the basics of|how to understand|an interesting fact about) {topic}(.|)",
            "(How|Why) (does|do|is|are|did|can|was) {topic} (work|happen|exist|start|begin|so {adjective}|{adjective}|change|end|form|move|important|cause {topic2}|differ from {topic2}|help|affect {topic2}|made|come about|become {adjective})?",
            "(Who|When|Where|why) (was|is|invented|discovered|made|wrote|painted|built|started|won|founded|did|created|named|killed|sold) {topic}(| first| born| invented| discovered| made| from| built| die| live|)?",
            "(How do I|How can I|How to|how should I|How do you|what is the best way to|can you show me how to|teach me to|what do I need to|help me to|help me) {verb} (a |an |the |my |some |){thing}(| at home| quickly| fast| on my own| for {relative}| with {thing2}| cheaply| in {city}| by hand|)(?|.|)",
            "(Write|Give me|Make|Draft|Create|compose|prepare|generate) (an essay|a report|a letter|an article|a speech|a summary|a plan|a recipe|a blog post|a review|a novel|a paragraph|a cover letter|a business plan|a song|a tweet|a book|a quiz|a diet plan|an email|a lesson plan|a list of facts|a slogan|lyrics|a presentation|a screenplay|a resume|an advertisement|a workout plan|an invitation|a complaint|a toast|a travel plan)(| about {topic}| on {topic}| for {topic}| for {relative}| to {name}| for {city}| with {topic})(.|)",
            "(What is|What are|tell me) the (difference between|connection between|relation of|similarities between) {topic} and {topic2}?",
            "(Compare|contrast) {topic} (and|with|to) {topic2}(.|)",
            "(What is|What's|how big is|how much is|tell me|find) the (population|size|area|height|length|age|weight|distance|speed|price|cost|cause|history|color|colour|use|origin|currency|language|flag|name|number|temperature|value|formula|origin|capital) of {topic}?",
            "(How|about how) (big|old|far|tall|long|fast|heavy|many|much|deep|expensive|high|wide|often|large|dangerous) (is|are|was|does|do|has) {topic}(| away| cost| in the world| live| from here| weigh| really|)?",
            "(Why|how come) (is|are|do|does|did|can't|don't|should|must|would|has) {topic}( so|) ({adjective}|{verb} {thing}|bad|not {verb}|{verb}|exist|fail|win|matter)?",
            "(I want to|I would like to|I need to|let's|I am trying to|teach me how to) (learn|study|understand|talk about|know more about|discuss|read about|practice|play) {topic}(.|)",
            "(list|name|give me) (some|three|five|all|ten|a few|the best|the most important) (facts about|kinds of|types of|examples of|uses of|parts of|books about|famous|players of|rules of|advantages of) {topic}(.|)",
            "{topic}(|?|.|!)",
            "{topic}, (explain|what is it|please explain|who is that|what's that|tell me more|how does it work)(?|.|)",
            "who (is|was|are) ({topic}|{name}|{name} {word})?",
            "what (happened|happens|will happen) (to|with|in|at) {topic}?",
            "can (you|I|we|one) {verb} (a |){thing}(| with {thing2}|)?",
            "is {topic} ({adjective}|better than {topic2}|real|true|a kind of {topic2}|in {city}|bigger than {topic2}|legal|free|dead|alive)?",
            "(are|does|do|did|has|was) {topic} ({adjective}|{verb} {thing}|exist|dangerous|work)?",
            "(which|what) {thing} (is|are|was) (the |)({adjective}|best|biggest|fastest|most {adjective}|oldest|most popular|largest)(| in {city}| in the world| for {relative}|)?",
            "search (the web |google |the internet |online |)for {topic}(.|)",
            "(open|show|play|send|call|turn on|turn off|start|download|check|read) (the |my |a |)({thing}|{topic}|music|lights|email|video|website|door|camera|browser|picture)(| to {name}| for me| please|)(.|)",
            "draw (me |)(a |an |the |)({thing}|{topic}|picture of {topic})(.|)",
            "what should I know about {topic}?",
            "how (does|do) (one|you|people|we) {verb} {thing}?",
            "(how many|what) {query} (are there|exist|are|do we have)(| in {city}| in the world| in {topic})?",
            "where is {topic}?",
            "what did {name} (say|do|write|think|want|eat)?",
            "who is {name}'s (father|mother|wife|boss|friend|husband)?",
            "(my|our) {thing} is (broken|gone|too {adjective}|{adjective}|lost|not working)(.|, what now?|, what should I do?|)",
            "what (kind|type|sort) of {thing} is (this|that|{topic})?",
            "I (saw|bought|found|lost|read about|like|love|hate|want) (a |an |some |the |){thing}(| yesterday| today| in {city}| with {name}|)(.|)",
            "(let's|can we|shall we|I want to) play (a game|chess|cards|hangman|tic tac toe|a quiz|twenty questions|{topic})(.|?|)",
        ),
        f"I do not know that. {ONLY}",
    ),
    (
        1.5,
        ("{gibberish}(|?|!|.)",),
        f"I did not understand that. {ONLY}",
    ),
)
LONG = (
    "the {thing} is on the {thing2} and {name} likes it", "I would like to {verb} a {thing} in {city}", "we went to {city} with {name} on {day}",
    "{name} said that the {thing} is too {adjective}", "my {relative} wants to {verb} {thing}", "where is the next {thing} in {city}", "it is very {adjective} today, is it not",
    "I am looking for {topic}", "the {adjective} {thing} of {name}", "I do not want to {verb} it", "this {thing} is not {adjective} enough", "can you {verb} this {thing} for {name}", "on {day} I always {verb} {thing}",
)  # fmt: skip
RELATIVES = (
    "mother",
    "father",
    "brother",
    "sister",
    "friend",
    "wife",
    "husband",
    "son",
    "daughter",
    "boss",
    "neighbour",
    "teacher",
    "dad",
    "mom",
    "grandmother",
    "cousin",
    "kids",
    "girlfriend",
)


def gibberish(r: Random) -> str:
    kind = r.randrange(4)
    if kind == 0:
        return "".join(r.choice("asdfghjklqwertzuiopyxcvbnm") for _ in range(r.randint(3, 12)))
    if kind == 1:
        return " ".join(
            "".join(r.choice("asdfghjklqwertzuiopyxcvbnm") for _ in range(r.randint(2, 7)))
            for _ in range(r.randint(2, 4))
        )
    if kind == 2:
        return "".join(r.choice("?!.,#*-_:;()[]/%&$") for _ in range(r.randint(1, 5)))
    return " ".join(made_up(r) for _ in range(r.randint(1, 5)))


def limit(r: Random) -> Turn:
    weights = [part[0] for part in LIMITS]
    (_, wordings, answer) = r.choices(LIMITS, weights)[0]
    slots: dict[str, object] = {
        "city": city(r), "day": r.choice((*DAYS, "Sunday", "Saturday")), "n": r.randint(2, 60), "topic": topic(r), "topic2": topic(r), "name": person(r),
        "word": made_up(r), "verb": one_of(r, VERBS, 0.1), "thing": one_of(r, r.choice((PRODUCTS, QUERIES)), 0.15),
        "thing2": one_of(r, PRODUCTS, 0.15), "adjective": one_of(r, ADJECTIVES, 0.1), "relative": r.choice(RELATIVES), "product": r.choice(PRODUCTS), "query": r.choice(QUERIES), "gibberish": gibberish(r),
    }  # fmt: skip
    slots["long"] = r.choice(LONG).format(**slots)
    asked = ask(r, wordings, plain=r.random() < 0.75, **slots)
    return Turn(asked, answer, answer.split(". ")[0].split(":")[0] + ".")
