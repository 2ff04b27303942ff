"""Records of questions and passages for ``multi_qa``, read from files of any size.

A file is in HotpotQA's form (Yang et al. 2018): an array or lines of JSON objects with
``_id``, ``question``, ``answer``, ``context`` (a list of [title, [sentences]]) and
``supporting_facts`` (a list of [title, sentence index]); ``type`` and ``level`` may be
missing.

Memory is flat. One pass checks every record and keeps four numbers of each; a record is
read again from its bytes when it is needed. ``RecordSource`` is what ``multi_qa`` needs
of its data; ``FileSource`` provides it from files, as splits and shelves.
"""

from __future__ import annotations

import array
import codecs
import dataclasses
import hashlib
import html
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Protocol

import numpy as np

from mempo_jax.envs.base import DataError

CHUNK_BYTES = 1 << 20  # read at a time: few reads, little memory
MAX_OBJECT_CHARS = 1 << 24  # a longer object means a damaged file
_SPACE = " \t\r\n"
# If JSON fails this near the end of the window, a literal or escape may be cut there.
_NEAR_END = 12
_SHAPES = "one JSON array of objects, or one object a line"
SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class Passage:
    """A titled paragraph, in sentences; a search returns passages."""

    title: str
    sentences: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.sentences)


@dataclasses.dataclass(frozen=True)
class SupportingFact:
    """A sentence that supports an answer, and the title of its passage."""

    title: str
    sentence: str


@dataclasses.dataclass(frozen=True)
class QuestionRecord:
    """A question with its answer and the sentences that support it.

    Attributes:
      id: the record's id in its source.
      question: text of the question.
      answer: the gold answer.
      support: the supporting sentences, in order.
      kind: how it is to be answered, in its source's words ("bridge", "two_hop").
      queries: what a reader who knows the way would search for, one a hop; empty if
        unknown.
    """

    id: str
    question: str
    answer: str
    support: tuple[SupportingFact, ...]
    kind: str
    queries: tuple[str, ...] = ()


Parsed = tuple[QuestionRecord, tuple[Passage, ...]]


class RecordSource(Protocol):
    """Questions in *shelves*: one search tool is built over the passages of a shelf.

    A small source is one shelf. A large one has many, so that only one shelf has to be
    in memory; a task never leaves its shelf.
    """

    def shelves(self, split: str) -> int:
        """Returns the number of shelves of ``split``."""
        ...

    def numbers(self, split: str, shelf: int) -> Sequence[int]:
        """Returns the numbers of the records of ``split`` that are on ``shelf``."""
        ...

    def record(self, split: str, number: int) -> QuestionRecord:
        """Returns record ``number`` of ``split``."""
        ...

    def passages(self, split: str, shelf: int) -> list[Passage]:
        """Returns all passages of a ``shelf`` of ``split``, each once."""
        ...

    def find(self, question: str) -> QuestionRecord | None:
        """Returns the record with this ``question``, None if there is none."""
        ...


class FileSource:
    """Records of one file, divided into splits by ``_id``, or of a file per split.

    Args:
      files: path by split; validation and test may be missing, then they are shares of
        the training file.
      shares: shares of validation and test; ignored for a split with a file.
      shelf_records: approximate records of one shelf; neighbours in the file.

    Raises:
      DataError: see ``RecordFile``; or a split without any record.
    """

    def __init__(
        self,
        files: dict[str, pathlib.Path],
        shares: tuple[float, float],
        shelf_records: int,
    ) -> None:
        # A file that serves several splits is read once.
        opened = {path: RecordFile(path) for path in dict.fromkeys(files.values())}
        self._files = {s: opened[files.get(s, files["train"])] for s in SPLITS}
        self._numbers = {s: self._split(s, set(files), shares) for s in SPLITS}
        self._edges = {
            split: _edges(len(file), shelf_records)
            for split, file in self._files.items()
        }

    def _split(
        self, split: str, with_file: set[str], shares: tuple[float, float]
    ) -> np.ndarray:
        """Returns the numbers of the records of a split, ascending.

        Args:
          with_file: splits that have a file of their own.
        """
        file = self._files[split]
        if split in with_file and split != "train":
            return np.arange(len(file))
        used_shares = [
            0.0 if name in with_file else share
            for name, share in zip(SPLITS[1:], shares, strict=True)
        ]
        places = [share_of(int(d), *used_shares) for d in file.id_digests]
        numbers = np.flatnonzero(np.array(places) == split)
        if split == "train" and not len(numbers):
            raise DataError(
                f"{file.path}: expected records for training, got {len(file)} that all "
                "fall to other splits; lower config.env.multi_qa.validation_share or "
                "test_share"
            )
        return numbers

    def shelves(self, split: str) -> int:
        """See ``RecordSource``; every ``split`` of one file has the same shelves."""
        return len(self._edges[split]) - 1

    def numbers(self, split: str, shelf: int) -> Sequence[int]:
        """Returns the numbers of the records of ``split`` that are on ``shelf``."""
        first, end = self._edges[split][shelf : shelf + 2]
        numbers = self._numbers[split]
        # The numbers ascend, so those of a shelf are a slice.
        low, high = np.searchsorted(numbers, (first, end))
        return numbers[low:high].tolist()

    def record(self, split: str, number: int) -> QuestionRecord:
        """Reads record ``number`` of ``split`` from its file."""
        return self._files[split].read(number)[0]

    def passages(self, split: str, shelf: int) -> list[Passage]:
        """Reads the passages of a ``shelf`` of the file that serves ``split``.

        Those of other splits' records are among them, if one file serves several
        splits.
        """
        first, end = self._edges[split][shelf : shelf + 2]
        file = self._files[split]
        passages = (p for number in range(first, end) for p in file.read(number)[1])
        return list(dict.fromkeys(passages))

    def find(self, question: str) -> QuestionRecord | None:
        """Returns the record with this ``question``, None if no file has it."""
        for file in dict.fromkeys(self._files.values()):
            if (record := file.find(question)) is not None:
                return record
        return None


def _edges(count: int, size: int) -> list[int]:
    """Returns the borders of about equal shelves of about ``size`` records."""
    shelves = max(1, round(count / size))
    return [count * at // shelves for at in range(shelves + 1)]


def find_files(data_dir: str, names: dict[str, str]) -> dict[str, pathlib.Path]:
    """Returns the path by split; "" for training means the one JSON file of the folder.

    Args:
      data_dir: the folder, as in ``config.env.data_dir``.
      names: file name by split, "" if none is named.

    Raises:
      DataError: no such folder or file, none or several to choose from, or one file for
        two splits.
    """
    folder = pathlib.Path(data_dir)
    if not data_dir or not folder.is_dir():
        raise DataError(
            "config.env.data_dir: expected a folder with a question file in HotpotQA's "
            f"form, got {data_dir!r}, which is not one"
        )
    files = {split: folder / name for split, name in names.items() if name}
    if "train" not in files:
        candidates = [
            p for p in sorted(folder.iterdir()) if p.suffix in (".json", ".jsonl")
        ]
        if len(candidates) != 1:
            raise DataError(
                f"{folder}: expected one .json or .jsonl file, found "
                f"{[p.name for p in candidates] or 'none'}; name one in "
                "config.env.multi_qa.train_file"
            )
        files["train"] = candidates[0]
    for split, path in files.items():
        if not path.is_file():
            raise DataError(
                f"config.env.multi_qa.{split}_file: expected a file of {folder}, got "
                f"{path.name!r}, which is not there"
            )
    if len({path.resolve() for path in files.values()}) < len(files):
        shown = {split: path.name for split, path in files.items()}
        raise DataError(
            "config.env.multi_qa: expected another file for each split that names one, "
            f"got {shown}; leave validation_file or test_file empty to hold out shares "
            "of the training file"
        )
    return files


def share_of(digest: int, validation: float, test: float) -> str:
    """Assigns a record or country to a split by its digest.

    It falls into the same split always, whatever else there is.

    Args:
      digest: 32-bit number.
      validation: share of validation, in [0, 1].
      test: share of test, in [0, 1].

    Returns:
      One of ``SPLITS``.
    """
    place = digest / 2**32
    if place < test:
        return "test"
    return "validation" if place < test + validation else "train"


class RecordFile:
    """The records of one file by number, from 0.

    ``id_digests``, uint32 [n], depend on each record's ``_id`` alone.

    Args:
      path: the file.

    Raises:
      DataError: a missing or damaged file, or a record of another shape; names the
        file, the record (from 1), the field, what was expected and what came.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        # Numbers only, no texts: memory does not depend on the size of a record.
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
        """Returns record ``number`` and its passages.

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

    def find(self, question: str) -> QuestionRecord | None:
        """Returns the first record with this ``question``, None if there is none."""
        digest = np.uint64(_digest(question, 8))
        at = int(np.searchsorted(self._questions, digest, sorter=self._order))
        # Two questions may share a digest; the text decides.
        for place in range(at, len(self)):
            number = int(self._order[place])
            if self._questions[number] != digest:
                return None
            record, _ = self.read(number)
            if record.question == question:
                return record
        return None


def _digest(text: str, size: int) -> int:
    # JSON escapes may give lone surrogates, which strict UTF-8 refuses.
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size)
    return int.from_bytes(digest.digest(), "little")


def parse(value: Any, place: str) -> Parsed:
    """Checks one decoded record and converts it; entities become characters.

    A supporting fact is left out if it names a passage or a sentence that the context
    lacks: the official files have some.

    Args:
      value: the decoded JSON object.
      place: file and record, for errors.

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
    # Reversed, so that the first of two passages with one title counts.
    by_title = {p.title: p for p in reversed(passages)}
    facts = []
    for at, item in enumerate(_list(value, "supporting_facts", place)):
        title, sentence = _fact(item, f"{place}, field supporting_facts[{at}]")
        passage = by_title.get(title)
        if passage is not None and sentence < len(passage.sentences):
            facts.append(SupportingFact(title, passage.sentences[sentence]))
    record_id, question, answer = texts
    return QuestionRecord(record_id, question, answer, tuple(facts), kind), passages


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
    items = value.get(name)
    if not isinstance(items, list):
        got = _cut(items) if name in value else "no such field"
        raise DataError(f"{place}, field {name}: expected a list, got {got}")
    return items


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
    """Returns a text with entities as characters and single spaces."""
    return " ".join(html.unescape(text).split())


def _cut(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def read_objects(path: pathlib.Path) -> Iterator[tuple[int, int, Any]]:
    """Reads the objects of a JSON array, or of lines, one by one.

    The first character says which: ``[{...}, {...}]`` or ``{...}`` a line. Memory is
    that of one chunk and one object, whatever the file's size.

    Args:
      path: the file.

    Yields:
      (first byte, length in bytes, value) of each object, in order.

    Raises:
      DataError: no file, or one of another shape; names the file, the record (from 1)
        and the byte, what was expected and what came.
    """
    try:
        with path.open("rb") as file:
            yield from _Stream(path, file).objects()
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, got {error}") from error


class _Stream:
    """A moving window of text over a file of bytes."""

    def __init__(self, path: pathlib.Path, file: BinaryIO) -> None:
        self._path, self._file = path, file
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._json = json.JSONDecoder()
        self._text, self._at = "", 0  # the window, and how far it is read
        marked = file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
        file.seek(len(codecs.BOM_UTF8) if marked else 0)
        # A position in the window, and its byte in the file.
        self._mark = 0, file.tell()
        self._ended = False
        self._record = 0

    def objects(self) -> Iterator[tuple[int, int, Any]]:
        """Yields (first byte, length in bytes, value) of each object."""
        start = self._peek()
        if start not in ("[", "{"):
            raise self._error(_SHAPES)
        is_array = start == "["
        if is_array:
            self._at += 1
        while self._find_next(is_array):
            self._record += 1
            if self._peek() != "{":
                raise self._error("an object {...}")
            value, end = self._decode()
            begin = self._byte(self._at)
            self._at = end
            yield begin, self._byte(end) - begin, value

    def _find_next(self, is_array: bool) -> bool:
        """Moves to the next object; False at the proper end of the file or array."""
        here = self._peek()
        if not is_array:
            return here != ""
        if here == "]":
            self._at += 1
            if self._peek() != "":
                raise self._error("nothing after the ] that ends the array")
            return False
        if self._record:
            if here != ",":
                raise self._error("a comma or ] after the record")
            self._at += 1
        return True

    def _peek(self) -> str:
        """Returns the next character that is no space, "" at the end of the file."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read_more():
                return ""

    def _decode(self) -> tuple[Any, int]:
        """Decodes the object at the current position; returns it and its end."""
        while True:
            try:
                return self._json.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                left = len(self._text) - self._at
                # Is the object damaged, or only cut off at the end of the window?
                cut = error.msg.startswith("Unterminated string")
                cut = cut or error.pos >= len(self._text) - _NEAR_END
                if cut and left <= MAX_OBJECT_CHARS and self._read_more():
                    continue
                self._at = min(error.pos, len(self._text))
                expected = f"an object that ends within {MAX_OBJECT_CHARS} characters"
                expected = expected if left > MAX_OBJECT_CHARS else error.msg
                raise self._error(f"valid JSON ({expected})") from error
            except RecursionError as error:
                raise self._error("an object of few levels") from error

    def _read_more(self) -> bool:
        """Drops what was read, appends the next bytes; False at the end of the file."""
        if self._ended:
            return False
        self._mark = 0, self._byte(self._at)
        self._text, self._at = self._text[self._at :], 0
        # An object longer than the window doubles it, so that it is parsed few times.
        raw = self._file.read(max(CHUNK_BYTES, len(self._text)))
        self._ended = not raw
        try:
            new = self._utf8.decode(raw, final=self._ended)
        except UnicodeDecodeError as error:
            raise self._error(f"UTF-8 text ({error})") from error
        self._text += new
        return not self._ended or bool(new)

    def _byte(self, position: int) -> int:
        """Returns the byte of a position, never before that of the last call."""
        last, byte = self._mark
        self._mark = position, byte + len(self._text[last:position].encode())
        return self._mark[1]

    def _error(self, expected: str) -> DataError:
        got = self._text[self._at : self._at + 40]
        shown = repr(got) if got else "the end of the file"
        number = max(self._record, 1)
        return DataError(
            f"{self._path}, record {number}, byte {self._byte(self._at)}: expected "
            f"{expected}, got {shown}; the file must be {_SHAPES}"
        )
