"""Word classes that the lexical judge knows, and one way of writing numbers and dates.

The classes are closed: function words, not topics. English comes first, then the
negations and prepositions of German, Spanish, French and Italian; Chinese goes by
single letters. All words are in lower case.
"""

from __future__ import annotations

import functools
import re
import unicodedata


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _rows(text: str) -> dict[str, str]:
    """Maps every word of a line but its first to the first."""
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
# Without apostrophes: they are taken out before the word is looked up.
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
# With a participle after it, these make a passive.
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
# They begin with a capital, but after "by" they name no agent.
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
_MONTHS = "|".join(f"{m[:3]}(?:{m[3:]})?" for m in MONTHS)
_ORDINAL = r"(\d{1,2})(?:st|nd|rd|th)?"
# May alone is a verb: a month is read only beside a day.
_DAY_MONTH = re.compile(rf"\b{_ORDINAL}\.? (?:of )?({_MONTHS})\b", re.I)
_MONTH_DAY = re.compile(rf"\b({_MONTHS})\.? (?:the )?{_ORDINAL}\b(?![:.,]\d)", re.I)
_ISO = re.compile(r"\b(\d{4})-(\d\d?)-(\d\d?)\b")
# 5pm, 5.30 pm, 5 o'clock, 17 uhr | 9:30, which lacks a zero.
_CLOCK = re.compile(
    r"\b(\d{1,2})(?:[:.](\d\d))? ?(?:([ap])\.?m\b\.?|o'clock\b|uhr\b)|\b(\d):(\d\d)\b",
    re.I,
)
_CJK_DATE = re.compile(r"(?:(\d{4})年)?(\d{1,2})月(\d{1,2})[日号]?")
_CJK_CLOCK = re.compile(r"([上下]午|早上|晚上)?(\d{1,2})[点时](?:(半)|(\d{1,2})分?)?")
_CJK_NUMBER = re.compile(
    r"(?:\d{1,15}(?:\.\d{1,9})?)?[〇零一二两三四五六七八九十百千万亿]+"
)
_CJK_LETTER = re.compile(r"[\u3400-\u9fff]")
_DIGIT = re.compile(r"\d")
_THOUSANDS = re.compile(r"\b\d{1,3}(?:,\d{3})+\b")
_TENS = re.compile(
    r"\b(twen|thir|for|fif|six|seven|eigh|nine)(ty)[- ]"
    r"(one|two|three|four|five|six|seven|eight|nine)\b",
    re.I,
)
_COIN = re.compile(r"([$€£¥]) ?(\d[\d.,]*)")
_DIGITS = {letter: value for value, letter in enumerate("零一二三四五六七八九")} | {
    "〇": 0,
    "两": 2,
}
_POWERS = {"十": 10, "百": 100, "千": 1000, "万": 10_000, "亿": 100_000_000}
# Chinese words of several letters whose letters would mislead one by one.
_CJK_WORDS = {
    **dict.fromkeys(("现在", "目前", "已经", "备注", "注意", "请记住", "记住"), ""),
    **dict.fromkeys(("非常", "特别", "十分", "一下"), ""),
    **dict.fromkeys(("喜爱", "热爱"), "喜欢"),
    **dict.fromkeys(("没有", "从不", "从没", "从未", "并不", "并没"), "不"),
    "位于": "在",
    **dict.fromkeys(
        ("也许", "或许", "大概", "打算", "计划", "可能", "据说"), " maybe "
    ),
    **dict.fromkeys(("忘了", "忘记", "差点", "拒绝"), " false "),
    **dict.fromkeys(("除了", "除非"), " except "),
    "禁止": "不",
    **dict.fromkeys(("以前", "过去", "曾经"), " once "),
    **dict.fromkeys(("要是", "如果"), " if "),
    **dict.fromkeys(("星期天", "星期日", "礼拜天", "礼拜日", "周天", "周日"), "周7"),
    **dict.fromkeys(("星期", "礼拜"), "周"),
    **{"别人": "旁人", "别的": "其他", "未来": "将来", "非洲": "africa"},
}
_CJK_ONLY = re.compile(r"(?<![\d零一二两三四五六七八九十百千万几那这每])只")
_CJK_WORD = re.compile("|".join(sorted(_CJK_WORDS, key=len, reverse=True)))


def normalise_text(text: str) -> str:
    """Writes numbers, dates and times in one form (NFKC); case is kept.

    Args:
      text: any text.
    """
    text = unicodedata.normalize("NFKC", text).replace("’", "'")
    if not text.isascii() and _CJK_LETTER.search(text):
        text = _CJK_WORD.sub(lambda match: _CJK_WORDS[match[0]], text)
        text = _CJK_ONLY.sub(" only ", text)  # after a number it counts animals
        text = _CJK_NUMBER.sub(_cjk_number, text)
        text = _CJK_DATE.sub(lambda m: f" {_date(m[2], m[3])} {m[1] or ''} ", text)
        text = _CJK_CLOCK.sub(_cjk_clock, text)
    # Most texts lack a number: a cheap look spares them the patterns.
    if "ty" in text:
        text = _TENS.sub(_tens_and_ones, text)
    if _DIGIT.search(text):
        if "," in text:
            text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
        if "-" in text:
            text = _ISO.sub(lambda m: f"{_date(m[2], m[3])} {m[1]}", text)
        text = _COIN.sub(r"\2 \1", text)
        text = _DAY_MONTH.sub(lambda m: _date(_month(m[2]), m[1]), text)
        text = _MONTH_DAY.sub(lambda m: _date(_month(m[1]), m[2]), text)
        text = _CLOCK.sub(_clock, text)
    return text


@functools.lru_cache(maxsize=8192)
def stem(word: str) -> str:
    """Returns a word without its inflection, or its more common synonym.

    Args:
      word: in lower case.
    """
    base = PASTS.get(word) or _strip_ending(word)
    base = NUMBERS.get(base, base)
    sense = SYNONYMS.get(word) or SYNONYMS.get(base, base)
    # Of British and American spelling one is kept.
    if len(sense) > 4 and "our" in sense[2:]:
        sense = sense.replace("our", "or")  # colour, favourite
    return sense[:-1] if len(sense) > 3 and sense[-1] == "e" else sense


def is_past(word: str) -> bool:
    """Whether a word looks like the past or the participle of a verb.

    Args:
      word: in lower case.
    """
    return word in PASTS or (len(word) > 4 and word.endswith("ed"))


def is_present(word: str) -> bool:
    """Whether a word looks like a verb in the third person: "writes".

    Args:
      word: in lower case.
    """
    return len(word) > 3 and word[-1] == "s" and word[-2] not in "su'"


def is_cjk(word: str) -> bool:
    """Whether a word is one Chinese letter; Japanese ones count too.

    Args:
      word: a token; not empty.
    """
    return "\u3040" <= word[0] <= "\u9fff"


def _strip_ending(word: str) -> str:
    if len(word) < 4 or not word.isascii():
        return word
    if word.endswith(("ies", "ied")) and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "zes", "ches", "shes")):
        return word[:-2]
    if is_present(word) and not word.endswith("is"):
        return word[:-1]
    for ending in ("ing", "ed"):
        base = word.removesuffix(ending)
        if base != word and len(base) > 2 and any(v in base for v in "aeiouy"):
            # "stopped" is stop, but "called" call, "passed" pass, "buzzed" buzz.
            double = base[-1] == base[-2] and base[-1] not in "lsz"
            return base[:-1] if double else base
    return word


def _tens_and_ones(match: re.Match) -> str:
    """twenty-one -> 21."""
    tens, ones = match[1].lower() + "ty", match[3].lower()
    return NUMBERS[tens][0] + NUMBERS[ones]


def _month(name: str) -> str:
    short = [month[:3] for month in MONTHS]
    return str(short.index(name[:3].lower()) + 1)


def _date(month: str, day: str) -> str:
    return f"{int(month):02}-{int(day):02}"


def _clock(match: re.Match) -> str:
    hour, minute = int(match[1] or match[4]), match[2] or match[5] or "00"
    if match[3]:
        hour = hour % 12 + 12 * (match[3] in "pP")
    return f"{hour:02}:{minute}"


def _cjk_clock(match: re.Match) -> str:
    late = match[1] in ("下午", "晚上") and int(match[2]) < 12
    minute = 30 if match[3] else int(match[4] or 0)
    return f" {int(match[2]) + 12 * late:02}:{minute:02} "


def _cjk_number(match: re.Match) -> str:
    """二十三 -> 23, 3万 -> 30000, 二〇二四 -> 2024."""
    head = re.match(r"[\d.]*", match[0])[0]
    letters = match[0][len(head) :]
    if not head and all(letter in _DIGITS for letter in letters):
        return "".join(str(_DIGITS[letter]) for letter in letters)
    # A section is what comes before 万 or 亿, which multiply all of it.
    total, section = 0, 0
    digit = float(head) if "." in head else int(head or 0)
    for letter in letters:
        power = _POWERS.get(letter)
        if power is None:
            digit = _DIGITS[letter]
        elif power < 10_000:
            section, digit = section + (digit or 1) * power, 0
        else:
            total, section, digit = total + (section + digit or 1) * power, 0, 0
    return f"{total + section + digit:.15g}"  # 15 digits: no binary rounding shows
