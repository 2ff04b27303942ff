"""One way of writing for numbers, dates, times and inflected words."""

from __future__ import annotations

import functools
import re
import unicodedata

from mempo_jax.memory import lexicon

_MONTHS = "|".join(f"{m[:3]}(?:{m[3:]})?" for m in lexicon.MONTHS)
_ORDINAL = r"(\d{1,2})(?:st|nd|rd|th)?"
_DAY_MONTH = re.compile(rf"\b{_ORDINAL}\.? (?:of )?({_MONTHS})\b", re.I)
_MONTH_DAY = re.compile(rf"\b({_MONTHS})\.? (?:the )?{_ORDINAL}\b(?![:.,]\d)", re.I)
_ISO = re.compile(r"\b(\d{4})-(\d\d?)-(\d\d?)\b")
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


def unified(text: str) -> str:
    """NFKC; numbers, dates and times in one form; case is kept."""
    text = unicodedata.normalize("NFKC", text).replace("’", "'")
    if not text.isascii() and _CJK_LETTER.search(text):
        text = _CJK_WORD.sub(lambda found: _CJK_WORDS[found[0]], text)
        text = _CJK_ONLY.sub(" only ", text)  # after a number it counts animals
        text = _CJK_NUMBER.sub(_cjk_number, text)
        text = _CJK_DATE.sub(lambda m: f" {_date(m[2], m[3])} {m[1] or ''} ", text)
        text = _CJK_CLOCK.sub(_cjk_clock, text)
    if "ty" in text:
        text = _TENS.sub(_two_words, text)
    if _DIGIT.search(text):
        if "," in text:
            text = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), text)
        if "-" in text:
            text = _ISO.sub(lambda m: f"{_date(m[2], m[3])} {m[1]}", text)
        text = _COIN.sub(r"\2 \1", text)
        text = _DAY_MONTH.sub(lambda m: _date(_month(m[2]), m[1]), text)
        text = _MONTH_DAY.sub(lambda m: _date(_month(m[1]), m[2]), text)
        text = _CLOCK.sub(_clock, text)
    return text


@functools.lru_cache(maxsize=8192)
def stem(word: str) -> str:
    """A word without its inflection, or its more common synonym."""
    base = lexicon.PASTS.get(word) or _strip(word)
    base = lexicon.NUMBERS.get(base, base)
    sense = lexicon.SYNONYMS.get(word) or lexicon.SYNONYMS.get(base, base)
    if len(sense) > 4 and "our" in sense[2:]:
        sense = sense.replace("our", "or")  # colour, favourite
    return sense[:-1] if len(sense) > 3 and sense[-1] == "e" else sense


def is_past(word: str) -> bool:
    """Whether a lower-case word looks like the past or participle of a verb."""
    return word in lexicon.PASTS or (len(word) > 4 and word.endswith("ed"))


def is_present(word: str) -> bool:
    """Whether a lower-case word looks like "he writes"."""
    return len(word) > 3 and word[-1] == "s" and word[-2] not in "su'"


def _strip(word: str) -> str:
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
            double = base[-1] == base[-2] and base[-1] not in "lsz"
            return base[:-1] if double else base
    return word


def _two_words(found: re.Match) -> str:
    """twenty-one -> 21."""
    tens, ones = found[1].lower() + "ty", found[3].lower()
    return lexicon.NUMBERS[tens][0] + lexicon.NUMBERS[ones]


def _month(name: str) -> str:
    short = [month[:3] for month in lexicon.MONTHS]
    return str(short.index(name[:3].lower()) + 1)


def _date(month: str, day: str) -> str:
    return f"{int(month):02}-{int(day):02}"


def _clock(found: re.Match) -> str:
    hour, minute = int(found[1] or found[4]), found[2] or found[5] or "00"
    if found[3]:
        hour = hour % 12 + 12 * (found[3] in "pP")
    return f"{hour:02}:{minute}"


def _cjk_clock(found: re.Match) -> str:
    late = found[1] in ("下午", "晚上") and int(found[2]) < 12
    minute = 30 if found[3] else int(found[4] or 0)
    return f" {int(found[2]) + 12 * late:02}:{minute:02} "


def _cjk_number(found: re.Match) -> str:
    """二十三 -> 23, 3万 -> 30000, 二〇二四 -> 2024."""
    head = re.match(r"[\d.]*", found[0])[0]
    letters = found[0][len(head) :]
    if not head and all(letter in _DIGITS for letter in letters):
        return "".join(str(_DIGITS[letter]) for letter in letters)
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
    return f"{total + section + digit:.15g}"


def is_cjk(word: str) -> bool:
    """Whether a word is one Chinese letter."""
    return "\u3040" <= word[0] <= "\u9fff"
