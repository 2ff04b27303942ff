"""The records of ``multi_qa`` from files: which file, which split, which shelf."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np

from mempo_jax.envs.babi_files import DataError
from mempo_jax.envs.hotpot_files import RecordFile
from mempo_jax.envs.multi_qa_records import SPLITS, Passage, Record, share_of


class FileSource:
    """Records of one file, cut into splits by ``_id``, or of a file per split.

    Args:
      files: path by split; validation and test may be missing, then they are shares of
        the training file.
      shares: of validation and test, where they have no file.
      shelf_records: records of one shelf, about; neighbours in the file.

    Raises:
      DataError: see ``RecordFile``; or a split without any record.
    """

    def __init__(
        self,
        files: dict[str, pathlib.Path],
        shares: tuple[float, float],
        shelf_records: int,
    ) -> None:
        opened = {path: RecordFile(path) for path in dict.fromkeys(files.values())}
        self._files = {s: opened[files.get(s, files["train"])] for s in SPLITS}
        self._numbers = {s: self._split(s, set(files), shares) for s in SPLITS}
        self._edges = {
            split: _edges(len(file), shelf_records)
            for split, file in self._files.items()
        }

    def _split(
        self, split: str, own: set[str], shares: tuple[float, float]
    ) -> np.ndarray:
        """Numbers of the records of a split, ascending."""
        file = self._files[split]
        if split in own and split != "train":
            return np.arange(len(file))
        kept = [
            0.0 if name in own else share
            for name, share in zip(SPLITS[1:], shares, strict=True)
        ]
        places = [share_of(int(d), *kept) for d in file.id_digests]
        numbers = np.flatnonzero(np.array(places) == split)
        if split == "train" and not len(numbers):
            raise DataError(
                f"{file.path}: expected records for training, got {len(file)} that all "
                "fall to other splits; lower config.env.multi_qa.validation_share or "
                "test_share"
            )
        return numbers

    def shelves(self, split: str) -> int:
        return len(self._edges[split]) - 1

    def numbers(self, split: str, shelf: int) -> Sequence[int]:
        first, end = self._edges[split][shelf : shelf + 2]
        numbers = self._numbers[split]
        low, high = np.searchsorted(numbers, (first, end))
        return numbers[low:high].tolist()

    def record(self, split: str, number: int) -> Record:
        return self._files[split].read(number)[0]

    def passages(self, split: str, shelf: int) -> list[Passage]:
        first, end = self._edges[split][shelf : shelf + 2]
        file = self._files[split]
        found = (p for number in range(first, end) for p in file.read(number)[1])
        return list(dict.fromkeys(found))

    def find(self, question: str) -> Record | None:
        for file in dict.fromkeys(self._files.values()):
            if (record := file.find(question)) is not None:
                return record
        return None


def _edges(count: int, size: int) -> list[int]:
    """Borders of about equal shelves of about ``size`` records."""
    shelves = max(1, round(count / size))
    return [count * at // shelves for at in range(shelves + 1)]


def find_files(data_dir: str, names: dict[str, str]) -> dict[str, pathlib.Path]:
    """Paths by split; "" for training stands for the one JSON file of the folder.

    Raises:
      DataError: no such folder or file, none or several to choose from, or one file
        for two splits.
    """
    folder = pathlib.Path(data_dir)
    if not data_dir or not folder.is_dir():
        raise DataError(
            "config.env.data_dir: expected a folder with a question file in HotpotQA's "
            f"form, got {data_dir!r}, which is not one"
        )
    files = {split: folder / name for split, name in names.items() if name}
    if "train" not in files:
        found = [p for p in sorted(folder.iterdir()) if p.suffix in (".json", ".jsonl")]
        if len(found) != 1:
            raise DataError(
                f"{folder}: expected one .json or .jsonl file, found "
                f"{[p.name for p in found] or 'none'}; name one in "
                "config.env.multi_qa.train_file"
            )
        files["train"] = found[0]
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
