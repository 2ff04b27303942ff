r"""A whole environment of one's own: the door with the key must be remembered.

    python -m experiments.train --config=configs/base.py --workdir=runs/doors \
        --config.env.name=examples.own_environment:Doors --config.train.steps=40 \
        --config.train.cold_start_steps=150 --config.train.demonstrations=512

One of four observations deserves memory. The expert does not say which: demonstrations
keep a fifth of all its notes. 40 steps take about 95 seconds of CPU time in all. Expect
on held-out tasks (seeds 0 and 1):

                          cold start     trained
    success, sampled     0.43 - 0.46     0.91 - 0.97
    success, greedy      0.14 - 0.23     1.00
"""

import random

from mempo_jax.envs import StepResult

COLOURS = ("red", "green", "blue", "white", "black", "pink", "gold", "grey")
NEWS = ("rain falls", "a bird sings", "bread is warm", "the bell rings", "a cat sleeps")


class Doors:
    goal = "open the right door"
    write_rate = 0.2  # of the writes of expert() that demonstrations keep

    def reset(self, seed):
        rng = random.Random(seed)
        self.door, self.turn, self.right = rng.choice(COLOURS), 0, 0.0
        self.key = rng.randrange(4)  # the observation that deserves memory
        self.shown = rng.sample(NEWS, 4)
        self.shown[self.key] = f"the key is behind the {self.door} door"
        self.shown.append("which door ?")
        return self.shown[0]

    def step(self, action, *, final=False):
        self.turn += 1
        done = final or self.turn == len(self.shown)
        self.right = float(done and action == f"open {self.door}")
        return StepResult("" if done else self.shown[self.turn], self.right, done)

    def score(self):
        return self.right

    def useful(self):
        return frozenset({self.key})

    def expert(self, seen, rng):
        if seen.observation != "which door ?":
            return f"<mem_write> {seen.observation}</mem_write>"
        if not seen.queries:  # nothing was recalled in this turn yet
            return '<mem_recall k="1"> the key is behind the door</mem_recall>'
        note = seen.recalled[0].split() if seen.recalled else []
        return f"<act> open {note[-2] if 'key' in note else 'red'}</act>"
