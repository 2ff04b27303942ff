"""Writes small files in the bAbI format, with sentences of our own."""

ONE = """\
1 Nora went to the cellar.
2 Otto moved to the attic.
3 Where is Nora? \tcellar\t1
4 Nora travelled to the porch.
5 Where is Nora? \tporch\t4
6 Where is Otto? \tattic\t2
1 Otto journeyed to the porch.
2 Where is Otto? \tporch\t1
"""
TWO = """\
1 Nora went back to the cellar.
2 Nora picked up the lamp there.
3 Otto went to the attic.
4 Where is the lamp? \tcellar\t2 1
5 Nora moved to the porch.
6 Nora put down the lamp.
7 Nora went to the attic.
8 Where is the lamp? \tporch\t6 5
9 Is Nora in the attic? \tyes\t7
10 Is Nora in the porch? \tno\t7
"""


def write(folder, train=ONE, test=TWO, task=1, name="own"):
    for split, text in (("train", train), ("test", test)):
        data = text if isinstance(text, bytes) else text.encode()
        (folder / f"qa{task}_{name}_{split}.txt").write_bytes(data)
    return str(folder)
