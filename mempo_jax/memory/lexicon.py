"""Closed classes of words that the lexical judge knows: function words, not topics.

English first; the negations and prepositions of German, Spanish, French and Italian;
Chinese by single letters. All in lower case.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _rows(text: str) -> dict[str, str]:
    """Every word of a line but its first one -> the first one."""
    rows = [line.split() for line in text.strip().splitlines()]
    return {word: row[0] for row in rows for word in row[1:]}


# Words that carry no content of their own.
FILLER = _words("""
    a an the this that these those there here it its is are was were be been being
    am has have had do does did will would shall should can could must of
    to in on at by for with as and or but so then than now currently also just
    actually still today please note remember s i my me we our you your he she his
    her they their them which who what when where really very
    的 了 是 在 和 与 也 就 都 着 这 那 其 之 把 被 个 有 他 她 它 我 你 们 还 请 已 很
""")
NEGATION = _words("""
    not no never none nobody nothing neither nor without cannot isnt arent wasnt
    werent dont doesnt didnt wont cant couldnt shouldnt wouldnt hasnt havent
    nicht kein keine keinen nie niemals ohne non senza nunca jamás sin pas jamais sans
    不 没 未 无 非 别
""")
# What makes a statement less, or other, than the plain fact.
MOODS = _rows("""
    maybe may might perhaps possibly probably either likely unlikely seem seems
    maybe plan plans want wants wanted hope hopes intend intends try tries tried wish
    maybe believe believes think thinks thought claim claims suspect suspects doubt
    untrue almost nearly hardly barely rarely seldom false fake alleged allegedly
    untrue deny denies denied refuse refuses refused forget forgets forgot
    untrue fail fails failed pretend pretends
    if unless whenever
    only
    except besides
    once formerly previously former
""") | {word: word for word in ("maybe", "if", "only", "except", "once")}
# A remark opens with one of these: nothing that another value could replace.
INTERJECTIONS = _words("""
    thanks thank wow whoa hi hey hello yeah yep yup yes yay ok okay oh ah aw aww awww
    congrats congratulations cheers sorry bye goodbye welcome woohoo haha lol sure
    sounds looks seems
""")
POINTERS = _words("it that you your they")  # as the first word: who or what?
STOPPING = _words("stopped stops quit quits ceased ceases")  # with "-ing": denied
# A value follows these: "is 17", "moved to berlin", "code: 17".
LINKS = _words("""
    is are was were be to in on at = : equals becomes now
    ist sind im am um es en è el la los 是 为 在 到 叫 至 于
""")
HAVE = _words("have has had having with 有")
BE = _words("is are was were be been being am get gets got")
ARTICLES = _words("a an the this that my your his her our their")
PRONOUNS = _words("he she it they s 他 她 它")
CONJUNCTIONS = _words("and but while whereas or , 和 与 且 而")
# Direction and side: with another one the statement is another.
RELATIONS = _words("""
    from before after until since under over above below behind against less more
    off out up down
    从 前 后 上 下
""")
PREPOSITIONS = RELATIONS | _words("""
    to in on at by for with of about into near auf im am zum zur mit von bei seit
    für aus nach um über unter en con por para desde dal di da nel per à de chez
    在 到 对 跟 给 比 于
""")
WEEKDAYS = _words("monday tuesday wednesday thursday friday saturday sunday")
# One sense, several words: kept to what notes about people are full of.
SYNONYMS = _rows("""
    phone telephone
    live reside dwell
    buy purchase
    start begin commence
    movie film
    mother mom mum
    father dad
    child kid
    big large
    name call
    fix repair
    kilometre km kilometer
    kilogram kg kilo
    gram g
    metre m meter
    centimetre cm centimeter
    litre l liter
    hour h hr
    minute min
    sec s seconds
    dollar $ usd
    euro € eur
    pound £ gbp
    yuan ¥ 元 块
    percent %
    degree °
""")
# After a number these make it a name: room 12, third floor, class 3.
COUNTERS_OF_NAMES = _words("号 楼 班 室 层 组 期 有 在 是")
UNITS = "km|kg|cm|mm|ms|gb|mb|kb|ml|min|h|g|m|l|s|am|pm|st|nd|rd|th"
# Verbs whose past is no "-ed".
PASTS = _rows("""
    be was were
    bear born
    become became
    begin began begun
    break broke broken
    bring brought
    build built
    buy bought
    choose chose chosen
    come came
    drink drank drunk
    drive drove driven
    eat ate eaten
    feel felt
    find found
    fly flew flown
    get got gotten
    give gave given
    go went gone
    grow grew grown
    hold held
    keep kept
    know knew known
    leave left
    lend lent
    lose lost
    make made
    meet met
    pay paid
    run ran
    say said
    see saw seen
    sell sold
    send sent
    sleep slept
    speak spoke spoken
    spend spent
    take took taken
    teach taught
    tell told
    think thought
    wear wore worn
    win won
    write wrote written
""")
_UNITS_UP = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen "
    "fourteen fifteen sixteen seventeen eighteen nineteen twenty"
)
_ORDINALS = "zeroth first second third fourth fifth sixth seventh eighth ninth tenth"
NUMBERS = {
    word: str(value)
    for names in (_UNITS_UP, _ORDINALS)
    for value, word in enumerate(names.split())
} | {
    word: str(value)
    for value, word in zip(
        range(30, 100, 10),
        ("thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"),
    )
}
MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july"),
    *("august", "september", "october", "november", "december"),
)
