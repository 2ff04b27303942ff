"""Reads question files in HotpotQA's form, of any size, in flat memory.

A record is an object with ``_id``, ``question``, ``answer``, ``context`` (a list of
[title, [sentences]]) and ``supporting_facts`` (a list of [title, sentence index]);
``type`` and ``level`` may be missing. Source of the form: Yang et al. 2018, "HotpotQA".

One pass checks every record and keeps four numbers of each; a record is read again
from its bytes when it is wanted.
"""

from __future__ import annotations

import array
import hashlib
import html
import json
import pathlib
from typing import Any

import numpy as np

from mempo_jax.envs.babi_files import DataError
from mempo_jax.envs.json_stream import read_objects
from mempo_jax.envs.multi_qa_records import Fact, Passage, Record

Parsed = tuple[Record, tuple[Passage, ...]]


class RecordFile:
    """The records of one file by number, from 0.

    ``id_digests``: uint32 [n], from each record's ``_id`` alone.

    Raises:
      DataError: a missing or damaged file, or a record of another shape; names the
        file, the record (from 1), the field, what was expected and what came.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        starts, sizes = array.array("q"), array.array("q")
        ids, questions = array.array("L"), array.array("Q")
        for number, (start, size, value) in enumerate(read_objects(path)):
            record, _ = parse(value, f"{path}, record {number + 1}")
            starts.append(start)
            sizes.append(size)
            ids.append(_digest(record.id, 4))
            questions.append(_digest(record.question, 8))
        if not starts:
            raise DataError(f"{path}: expected at least one record, got none")
        self._starts, self._sizes = starts, sizes
        self.id_digests = np.array(ids, np.uint32)
        self._questions = np.array(questions, np.uint64)
        self._order = np.argsort(self._questions, kind="stable")

    def __len__(self) -> int:
        return len(self._starts)

    def read(self, number: int) -> Parsed:
        """A record and its passages.

        Raises:
          DataError: the file is not what it was when it was opened.
        """
        place = f"{self.path}, record {number + 1}"
        try:
            with self.path.open("rb") as file:
                file.seek(self._starts[number])
                value = json.loads(file.read(self._sizes[number]))
        except (OSError, ValueError) as error:
            raise DataError(
                f"{place}: expected the file as it was at the start of the run, got "
                f"{error}; start again if it was changed"
            ) from error
        return parse(value, place)

    def find(self, question: str) -> Record | None:
        """The first record with this question, None where there is none."""
        wanted = np.uint64(_digest(question, 8))
        at = int(np.searchsorted(self._questions, wanted, sorter=self._order))
        for place in range(at, len(self)):
            number = int(self._order[place])
            if self._questions[number] != wanted:
                return None
            record, _ = self.read(number)
            if record.question == question:
                return record
        return None


def _digest(text: str, size: int) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size)
    return int.from_bytes(digest.digest(), "little")


def parse(value: Any, place: str) -> Parsed:
    """Checks one decoded record and gives it our form; entities become characters.

    A supporting fact that names a passage or a sentence which the context lacks is left
    out: the official files have some.

    Raises:
      DataError: names ``place``, the field, what was expected and what came.
    """
    texts = [_text(value, name, place) for name in ("_id", "question", "answer")]
    kind = _text(value, "type", place) if "type" in value else ""
    context = _list(value, "context", place)
    passages = tuple(
        _passage(item, f"{place}, field context[{at}]")
        for at, item in enumerate(context)
    )
    if not passages:
        raise DataError(f"{place}, field context: expected passages, got an empty list")
    by_title = {p.title: p for p in reversed(passages)}
    facts = []
    for at, item in enumerate(_list(value, "supporting_facts", place)):
        title, sentence = _fact(item, f"{place}, field supporting_facts[{at}]")
        passage = by_title.get(title)
        if passage is not None and sentence < len(passage.sentences):
            facts.append(Fact(title, passage.sentences[sentence]))
    named, question, answer = texts
    return Record(named, question, answer, tuple(facts), kind), passages


def _text(value: dict, name: str, place: str) -> str:
    if name not in value:
        known = ", ".join(map(str, list(value)[:8])) or "nothing"
        raise DataError(
            f"{place}, field {name}: expected a text, the record has {known}"
        )
    text = value[name]
    if not isinstance(text, str) or not text.strip():
        raise DataError(
            f"{place}, field {name}: expected a text, not empty, got {_cut(text)}"
        )
    return _clean(text)


def _list(value: dict, name: str, place: str) -> list:
    found = value.get(name)
    if not isinstance(found, list):
        got = _cut(found) if name in value else "no such field"
        raise DataError(f"{place}, field {name}: expected a list, got {got}")
    return found


def _passage(item: Any, place: str) -> Passage:
    ok = isinstance(item, list) and len(item) == 2 and isinstance(item[0], str)
    ok = ok and isinstance(item[1], list)
    if not ok or not all(isinstance(sentence, str) for sentence in item[1]):
        raise DataError(f"{place}: expected [title, [sentences]], got {_cut(item)}")
    return Passage(_clean(item[0]), tuple(map(_clean, item[1])))


def _fact(item: Any, place: str) -> tuple[str, int]:
    ok = isinstance(item, list) and len(item) == 2 and isinstance(item[0], str)
    ok = ok and isinstance(item[1], int) and not isinstance(item[1], bool)
    if not ok or item[1] < 0:
        raise DataError(f"{place}: expected [title, sentence >= 0], got {_cut(item)}")
    return _clean(item[0]), item[1]


def _clean(text: str) -> str:
    return " ".join(html.unescape(text).split())


def _cut(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
