"""Reads the objects of a JSON array, or of lines, one by one in flat memory."""

from __future__ import annotations

import codecs
import json
import pathlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from mempo_jax.envs.babi_files import DataError

CHUNK_BYTES = 1 << 20
MAX_OBJECT_CHARS = 1 << 24  # a longer one is taken for damage
_SPACE = " \t\r\n"
_NEAR_END = 12  # characters in which a cut literal or escape may be reported
_SHAPES = "one JSON array of objects, or one object a line"


def read_objects(path: pathlib.Path) -> Iterator[tuple[int, int, Any]]:
    """(first byte, length in bytes, value) of each object of a file, in order.

    Takes an array (``[{...}, {...}]``) and lines (``{...}`` each), told apart by the
    first character. Memory is that of one chunk and one object, whatever the file.

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
        self._text, self._at = "", 0  # the window, and the place reached in it
        marked = file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
        file.seek(len(codecs.BOM_UTF8) if marked else 0)
        self._mark = 0, file.tell()  # a place in the window, its byte in the file
        self._ended = False
        self._record = 0

    def objects(self) -> Iterator[tuple[int, int, Any]]:
        start = self._peek()
        if start not in ("[", "{"):
            raise self._error(_SHAPES)
        is_array = start == "["
        if is_array:
            self._at += 1
        while self._goes_on(is_array):
            self._record += 1
            if self._peek() != "{":
                raise self._error("an object {...}")
            value, end = self._decode()
            begin = self._byte(self._at)
            self._at = end
            yield begin, self._byte(end) - begin, value

    def _goes_on(self, is_array: bool) -> bool:
        """Moves to the next object; False where the end is reached, rightly."""
        here = self._peek()
        if not is_array:
            return here != ""
        if here == "]":
            self._at += 1
            if self._peek() != "":
                raise self._error("nothing behind the ] of the array")
            return False
        if self._record:
            if here != ",":
                raise self._error("a comma or ] behind the record")
            self._at += 1
        return True

    def _peek(self) -> str:
        """The next character that is no space, "" at the end of the file."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _decode(self) -> tuple[Any, int]:
        while True:
            try:
                return self._json.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                left = len(self._text) - self._at
                cut = error.msg.startswith("Unterminated string")
                cut = cut or error.pos >= len(self._text) - _NEAR_END
                if cut and left <= MAX_OBJECT_CHARS and self._more():
                    continue
                self._at = min(error.pos, len(self._text))
                expected = f"an object that ends within {MAX_OBJECT_CHARS} characters"
                expected = expected if left > MAX_OBJECT_CHARS else error.msg
                raise self._error(f"valid JSON ({expected})") from error
            except RecursionError as error:
                raise self._error("an object of few levels") from error

    def _more(self) -> bool:
        """Drops what was read, appends the next bytes; False at the end of the file."""
        if self._ended:
            return False
        self._mark = 0, self._byte(self._at)
        self._text, self._at = self._text[self._at :], 0
        # an object longer than the window doubles it, so that it is read few times
        raw = self._file.read(max(CHUNK_BYTES, len(self._text)))
        self._ended = not raw
        try:
            new = self._utf8.decode(raw, final=self._ended)
        except UnicodeDecodeError as error:
            raise self._error(f"UTF-8 text ({error})") from error
        self._text += new
        return not self._ended or bool(new)

    def _byte(self, place: int) -> int:
        """The byte of a place at or behind the last one asked for."""
        at, byte = self._mark
        self._mark = place, byte + len(self._text[at:place].encode())
        return self._mark[1]

    def _error(self, expected: str) -> DataError:
        got = self._text[self._at : self._at + 40]
        found = repr(got) if got else "the end of the file"
        number = max(self._record, 1)
        return DataError(
            f"{self._path}, record {number}, byte {self._byte(self._at)}: expected "
            f"{expected}, got {found}; the file must be {_SHAPES}"
        )
