"""A small story in the form of each of the twenty bAbI tasks, in words of our own.

``STORIES[task]`` is (file text, answers by question, positions of the support).
"""

STORIES = {
    1: (
        "1 Nora went to the cellar.\n2 Where is Nora? \tcellar\t1\n",
        ["cellar"],
        [{0}],
    ),
    2: (
        "1 Nora got the lamp.\n2 Nora went to the porch.\n"
        "3 Where is the lamp? \tporch\t1 2\n",
        ["porch"],
        [{0, 1}],
    ),
    3: (
        "1 Nora got the lamp.\n2 Nora went to the porch.\n3 Nora went to the attic.\n"
        "4 Where was the lamp before the attic? \tporch\t1 3 2\n",
        ["porch"],
        [{0, 1, 2}],
    ),
    4: (
        "1 The cellar is north of the porch.\n2 The attic is south of the porch.\n"
        "3 What is north of the porch?\tcellar\t1\n",
        ["cellar"],
        [{0}],
    ),
    5: (
        "1 Nora gave the lamp to Otto.\n2 Otto went to the porch.\n"
        "3 Who did Nora give the lamp to? \tOtto\t1\n4 Who gave the lamp? \tNora\t1\n",
        ["Otto", "Nora"],
        [{0}, {0}],
    ),
    6: (
        "1 Nora went to the cellar.\n2 Is Nora in the cellar? \tyes\t1\n"
        "3 Is Nora in the porch? \tno\t1\n",
        ["yes", "no"],
        [{0}, {0}],
    ),
    7: (
        "1 Nora got the lamp.\n2 How many objects is Nora carrying? \tone\t1\n"
        "3 Nora got the key.\n4 How many objects is Nora carrying? \ttwo\t1 3\n"
        "5 How many objects is Otto carrying? \tnone\t\n",
        ["one", "two", "none"],
        [{0}, {0, 2}, set()],
    ),
    8: (
        "1 Nora went to the porch.\n2 Nora got the lamp.\n3 Nora got the key.\n"
        "4 What is Nora carrying? \tlamp,key\t2 3\n5 Nora dropped the key.\n"
        "6 Nora dropped the lamp.\n7 What is Nora carrying? \tnothing\t2 6 3 5\n",
        ["lamp,key", "nothing"],
        [{1, 2}, {1, 2, 4, 5}],
    ),
    9: (
        "1 Nora is no longer in the cellar.\n2 Is Nora in the cellar? \tno\t1\n",
        ["no"],
        [{0}],
    ),
    10: (
        "1 Nora is either in the attic or the porch.\n"
        "2 Is Nora in the attic? \tmaybe\t1\n",
        ["maybe"],
        [{0}],
    ),
    11: (
        "1 Nora went to the attic.\n2 After that she went to the porch.\n"
        "3 Where is Nora? \tporch\t1 2\n",
        ["porch"],
        [{0, 1}],
    ),
    12: (
        "1 Nora and Otto went to the attic.\n2 Where is Otto? \tattic\t1\n",
        ["attic"],
        [{0}],
    ),
    13: (
        "1 Nora and Otto went to the attic.\n2 Then they went to the porch.\n"
        "3 Where is Otto? \tporch\t1 2\n",
        ["porch"],
        [{0, 1}],
    ),
    14: (
        "1 Nora went to the attic this morning.\n2 Yesterday Nora went to the porch.\n"
        "3 Where was Nora before the attic? \tporch\t1 2\n",
        ["porch"],
        [{0, 1}],
    ),
    15: (
        "1 Owls are afraid of foxes.\n2 Hoot is a owl.\n"
        "3 What is Hoot afraid of?\tfox\t2 1\n",
        ["fox"],
        [{0, 1}],
    ),
    16: (
        "1 Hoot is a owl.\n2 Hoot is grey.\n3 Moon is a owl.\n"
        "4 What color is Moon?\tgrey\t3 1 2\n",
        ["grey"],
        [{0, 1, 2}],
    ),
    17: (
        "1 The star is above the cube.\n2 The cube is above the disc.\n"
        "3 Is the disc below the star?\tyes\t1 2\n",
        ["yes"],
        [{0, 1}],
    ),
    18: (
        "1 The crate is bigger than the jar.\n2 The jar is bigger than the coin.\n"
        "3 Does the crate fit in the coin?\tno\t1 2 1\n",
        ["no"],
        [{0, 1}],
    ),
    19: (
        "1 The cellar is south of the porch.\n2 The attic is west of the cellar.\n"
        "3 How do you go from the porch to the attic?\ts,w\t1 2\n",
        ["s,w"],
        [{0, 1}],
    ),
    20: (
        "1 Nora is tired.\n2 Where will Nora go?\tbedroom\t1\n"
        "3 Nora went to the bedroom.\n4 Why did Nora go to the bedroom?\ttired\t1\n",
        ["bedroom", "tired"],
        [{0}, {0}],
    ),
}
