"""Talk with a policy and watch what it does to its memory.

    python -m experiments.chat --policy=DIR [--bank=DIR] [--goal=TEXT] [--temperature=T]

Each line is shown to the policy as the observation of a short task of its own. What it
writes stays in its bank for the lines after it, and with --bank on disk for the next
time. Without --goal it sees the goal that it was trained with, if all its tasks had the
same one. Lines come from a terminal or a pipe; the end of input (Ctrl-D) ends it.

Lines that begin with / are for this program: /memory prints the bank, /purge erases
entries for good, /help prints the commands, /quit ends it.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from absl import flags

from mempo_jax.settings import ConfigError, nearest

from .flags import Command, new_options
from .launch import INTERRUPTED_EXIT, STOPPED_EXIT, fail, launch

OPTIONS = new_options()
flags.DEFINE_string(
    "policy", None, "a policy's directory, such as RUN/policy", flag_values=OPTIONS
)
flags.DEFINE_string("bank", "", "where its bank is kept", flag_values=OPTIONS)
flags.DEFINE_string(
    "goal",
    None,
    "shown above each line; that of its training if left",
    flag_values=OPTIONS,
)
flags.DEFINE_float(
    "temperature",
    0.0,
    "of sampling; 0, the default, takes the likeliest token always",
    lower_bound=0.0,
    flag_values=OPTIONS,
)
flags.DEFINE_bool(
    "greedy", False, "the same as --temperature=0, the default", flag_values=OPTIONS
)
HELP = (
    "/memory     print the bank: what is remembered, and what became of the rest",
    "/purge 3 7  erase these entries for good, with all that was merged with them",
    "/help       print these lines",
    "/quit       leave (Ctrl-D does too)",
)
MOST_WORDS = 40  # of a vocabulary, in the banner
MOST_TURNS = 64  # of a task that is looked through for its question


def main(command: Command) -> int:
    """Answers the lines of the input until it ends.

    Args:
      command: the parsed command line.

    Returns:
      The exit code.
    """
    options = command.options
    if options.greedy and options.temperature:
        raise ConfigError("--greedy and --temperature: give one of them")

    from mempo_jax import Agent

    try:
        agent = Agent.from_pretrained(
            options.policy, bank=options.bank or None, config=command.config
        )
    except ValueError as error:  # of the bank; one of the policy is a ConfigError
        raise ConfigError(str(error)) from error
    goals, about = _training(agent)
    goal = options.goal
    if goal is None:
        goal = goals[0] if len(set(goals)) == 1 else ""
    _note(*_banner(agent, options, goal, about))
    try:
        for line in _lines():
            if line == "/quit":
                break
            if line.startswith("/"):
                _obey(line, agent)
            else:
                _answer(agent, line, goal, options.temperature)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED_EXIT
    return 0


def _answer(agent: Any, line: str, goal: str, temperature: float) -> None:
    """Shows one line to the policy, and prints its actions and memory operations."""
    from mempo_jax import TextTask
    from mempo_jax.memory import BankFileError
    from mempo_jax.rollout.trajectory import op_lines

    def show(episode: Any) -> None:
        print(f"  says   {' '.join(episode.actions[-1].split())}")
        for record in episode.bank.log:
            if record.turn == episode.turn:
                print("\n".join(op_lines(record)), flush=True)

    if unknown := _unknown(line, agent.words):
        _note(f"warning: not in its vocabulary: {unknown}")
    task = TextTask([line], goal)
    try:
        trajectory = agent.run(task, temperature=temperature, on_turn=show)
    except (BankFileError, OSError) as error:
        fail(error, STOPPED_EXIT)
    except KeyboardInterrupt:
        # Compiled code may be running on a thread, and taking the interpreter down
        # around it can crash. A bank on disk is replaced as one, or not at all.
        print(file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(INTERRUPTED_EXIT)
    if trajectory.failure is not None:
        print(f"  failed {trajectory.failure}")
    reply = next((text for text in reversed(task.replies) if text), "-")
    print(f"reply: {reply} ({_memories(agent)})", flush=True)


def _obey(line: str, agent: Any) -> None:
    command, *words = line.split()
    if line == "/memory":
        print(agent.bank, flush=True)
    elif command == "/purge":
        _purge(words, agent)
    elif line == "/help":
        print("\n".join(HELP), flush=True)
    else:
        _note(f"{command}: unknown command; /help lists them")


def _purge(words: list[str], agent: Any) -> None:
    """Erases the entries of these ids, and says which went and what still says it."""
    if not words or not all(word.isdecimal() for word in words):
        _note("/purge: expected ids of entries, as in /purge 3 7; /memory lists them")
        return
    try:
        result = agent.purge([int(word) for word in words])
    except (ValueError, OSError) as error:
        _note(f"/purge: {error}")
        return
    print(f"erased: {', '.join(map(str, result.purged))}", flush=True)
    if result.repeated_in:
        others = ", ".join(map(str, result.repeated_in))
        _note(f"warning: the same words are in {others}, which stay")


def _banner(agent: Any, options: Any, goal: str, about: list[str]) -> Iterator[str]:
    """What the policy knows and how it is sampled, for someone who sees it first."""
    task, words = agent.settings.env.name, agent.words
    if words is None:
        origin = agent.settings.policy.path or options.policy
        yield f"policy {options.policy}: language model {origin}, trained on {task}"
    else:
        yield (
            f"policy {options.policy}: nano, a small network that was made for the task"
            f" {task} and knows {len(words)} words and signs, nothing else"
        )
    yield from (f"  {line}" for line in about)
    how = f"temperature {options.temperature:g}" if options.temperature else "greedy"
    yield f"  goal: {goal or 'none'}; {how}; {_memories(agent)}"
    if unknown := _unknown(goal, words):
        yield f"warning: the goal has what is not in its vocabulary: {unknown}"
    if agent.settings.context.rule == "rolling":
        yield "context rule rolling: its block ends with each line, nothing is kept"
    yield "The first reply takes longer, since programs are compiled. /help, /quit"


def _training(agent: Any) -> tuple[list[str], list[str]]:
    """The goals of some of the policy's tasks, and lines about what it read there.

    Both are empty for a language model, which reads any text.
    """
    if agent.words is None:
        return [], []
    try:
        suite = agent.suite
    except (ValueError, OSError, ImportError):  # its data or its package is not here
        return [], []
    tasks = [suite.task("train", index) for index in range(4)]
    goals, examples = zip(*(_example(suite.make(task), task.seed) for task in tasks))
    fact, question = examples[0]
    lines = [f"words: {_shown_words(suite.vocabulary())}"]
    lines.append(f'it was trained on lines such as "{fact}"')
    if question:
        lines[-1] += f' and questions such as "{question}"'
    topics = getattr(suite, "world_topics", ())
    if topics and agent.settings.env.ledger.relevance == "hidden":
        lines.append(
            f"only {', '.join(topics)} were ever asked about, so it may keep little"
            " else"
        )
    return list(goals), lines


def _example(env: Any, seed: int) -> tuple[str, tuple[str, str]]:
    """The goal of a task, its first line, and its first question ("" for none)."""
    seen, done = [env.reset(seed)], False
    at = min((question.observation for question in env.questions()), default=0)
    while len(seen) <= min(at, MOST_TURNS) and not done:
        step = env.step("")
        seen.append(step.observation)
        done = step.done
    question = seen[at] if 0 < at < len(seen) else ""
    return env.goal, (seen[0], question)


def _shown_words(vocabulary: list[str]) -> str:
    numbers = sorted({int(word) for word in vocabulary if word.isdecimal()})
    words = list(dict.fromkeys(word for word in vocabulary if not word.isdecimal()))
    shown = " ".join(words[:MOST_WORDS])
    if len(words) > MOST_WORDS:
        shown += f" and {len(words) - MOST_WORDS} more"
    if numbers:
        shown += f"; numbers from {numbers[0]} to {numbers[-1]}"
    return shown


def _unknown(text: str, words: frozenset[str] | None) -> str:
    """The words and signs of a text that are not among ``words``, with near ones."""
    if words is None:
        return ""
    pieces = dict.fromkeys(re.findall(r"\w+|[^\w\s]", text))
    shown = []
    for piece in (each for each in pieces if each not in words):
        near = nearest(piece.lower(), words) if piece.isalpha() else None
        shown.append(f"{piece} (near: {near})" if near else piece)
    return ", ".join(shown)


def _memories(agent: Any) -> str:
    count = len(agent.bank)
    return f"{count} memory" if count == 1 else f"{count} memories"


def _note(*lines: str) -> None:
    """Prints to the error stream: the output is for what the policy does."""
    print("\n".join(lines), file=sys.stderr, flush=True)


def _lines() -> Iterator[str]:
    """The lines of the input that are not blank, as they come."""
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="replace")  # a byte that is no text ends no talk
    watched = sys.stdin.isatty()
    if watched:
        with contextlib.suppress(ImportError):
            # `input` then edits lines, and finds earlier ones again.
            import readline  # noqa: F401
    while True:
        try:
            line = input("> " if watched else "")
        except EOFError:
            if watched:
                print(file=sys.stderr)
            return
        if line.strip():
            yield line.strip()


if __name__ == "__main__":
    launch(main, OPTIONS, required=("policy",))
