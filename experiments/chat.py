"""Talk with a policy and watch what it does to its memory.

    python -m experiments.chat --policy=DIR [--bank=DIR] [--goal=TEXT] [--greedy]

Each line is shown to the policy as the observation of a short task of its own. What it
writes stays in its bank for the lines behind it, and with --bank on disk for the next
time. Lines come from a terminal or a pipe; the end of input ends it.
"""

import sys
from collections.abc import Iterator

from absl import flags

from experiments.flags import Command, new_options
from experiments.launch import STOPPED_EXIT, fail, launch
from mempo_jax.settings import ConfigError

OPTIONS = new_options()
flags.DEFINE_string(
    "policy", None, "a policy's directory, such as RUN/policy", flag_values=OPTIONS
)
flags.DEFINE_string("bank", "", "where its bank is kept", flag_values=OPTIONS)
flags.DEFINE_string("goal", "", "shown above each line", flag_values=OPTIONS)
flags.DEFINE_bool("greedy", False, "take the likeliest token", flag_values=OPTIONS)


def main(command: Command) -> int:
    options = command.options

    from experiments.transcript import op_lines
    from mempo_jax import Agent, TextTask

    try:
        agent = Agent.from_pretrained(
            options.policy, bank=options.bank or None, config=command.config
        )
    except ValueError as error:  # of the bank; one of the policy is a ConfigError
        raise ConfigError(str(error)) from error

    def show(episode) -> None:
        print(f"  says   {' '.join(episode.actions[-1].split())}")
        for record in episode.bank.log:
            if record.turn == episode.turn:
                print("\n".join(op_lines(record)), flush=True)

    if agent.settings.context.rule == "rolling":
        print("context rule rolling: its block ends with each line, nothing is kept")
    if sys.stdin.isatty():
        print(f"{len(agent.bank)} memories; end with Ctrl-D")
    for line in _lines():
        task = TextTask([line], options.goal)
        try:
            trajectory = agent.run(task, greedy=options.greedy, on_turn=show)
        except OSError as error:
            fail(error, STOPPED_EXIT)
        if trajectory.failure is not None:
            print(f"  failed {trajectory.failure}")
        reply = next((text for text in reversed(task.replies) if text), "-")
        print(f"reply: {reply} ({len(agent.bank)} memories)", flush=True)
    return 0


def _lines() -> Iterator[str]:
    """Lines of the input that hold something, as they come."""
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="replace")  # a byte that is no text ends no talk
    while True:
        if sys.stdin.isatty():
            print("> ", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()


if __name__ == "__main__":
    launch(main, OPTIONS, required=("policy",))
