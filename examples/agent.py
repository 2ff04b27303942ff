"""A trained policy at work: what it notes is there for the next task.

    make train
    .venv/bin/python examples/agent.py [runs/base/policy]

The policy of `make train` has found out that questions in its world are about phone,
room and seat. It notes such facts, passes by the others, and answers from its notes.
The exit code is 1 if the answer is wrong.
"""

import sys
import tempfile

from mempo_jax import Agent, TextTask

GOAL = "answer the question"  # as in its training
FACTS = ("ann phone is 23", "cleo desk is 17", "ben room is 41")
QUESTION, ANSWER = "what is ann phone", "23"


def main(policy: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        bank = f"{folder}/notes"  # saved after each task
        agent = Agent.from_pretrained(policy, bank=bank)
        for fact in FACTS:
            agent.run(TextTask([fact], GOAL), greedy=True)

        later = Agent.from_pretrained(policy, bank=bank)  # as another process would
        trajectory = later.run(TextTask([QUESTION], GOAL), greedy=True)
    print(trajectory)
    print()
    print(later.bank)
    right = trajectory.answers == [ANSWER]
    print(f"\nexpected the answer {ANSWER}: {'right' if right else 'WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:] or ["runs/base/policy"]))
