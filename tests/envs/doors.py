# doors.py, to be run with --config.env.name=doors:Doors
import random

from mempo_jax.envs import StepResult


class Doors:
    goal = "open the door that was told at first"
    moves = ("open 1", "open 2", "open 3")  # demonstrations choose from them

    def reset(self, seed):
        self.door = random.Random(seed).randint(1, 3)
        self.turn, self.right = 0, 0.0
        return f"the door is {self.door}"

    def step(self, action, *, final=False):
        self.turn += 1
        done = final or self.turn == 4
        self.right = float(done and action.strip() == f"open {self.door}")
        text = "which door ?" if self.turn == 3 else "a corridor"
        return StepResult(text, self.right, done)

    def score(self):
        return self.right

    def useful(self):
        return frozenset({0})  # observations worth remembering, for the evaluation
