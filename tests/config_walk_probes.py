"""Where a config field can be seen to act: each probe is a small part of a run.

A probe takes settings and returns what it saw. Two configs act differently where a
probe sees something else, or refuses one of them.
"""

import dataclasses
import functools
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax

from mempo_jax.builders.engines import (
    make_collector,
    make_run_mesh,
    make_sampling_mesh,
)
from mempo_jax.builders.policies import adapt, initial_policy, make_nano
from mempo_jax.builders.suites import make_episodes, make_expert, make_suite
from mempo_jax.distributed import placement
from mempo_jax.envs.ledger import LedgerEnv
from mempo_jax.evaluation import held_out
from mempo_jax.memory import Bank, make_embedder
from mempo_jax.models import lora
from mempo_jax.rollout import decode as decode_module
from mempo_jax.training import cold_start as cold_starts
from mempo_jax.training import run
from mempo_jax.training.loop import Trainer
from mempo_jax.training.loss import count_tokens
from mempo_jax.training.state import (
    policy_optimiser,
    scheduled_values,
)
from mempo_jax.training.step import TrainPrograms
from mempo_jax.types import TrainState
from tests.training import step_case

WEIGHTS = {"norm": {"scale": np.ones(4, np.float32)}}
TURNS = (  # what the scripted policy says; then it passes until it is asked
    '<mem_write title="first">ann phone 17</mem_write>',
    "<mem_write>ann phone 17</mem_write>",
    "<mem_write>ann phone 17 blue</mem_write><mem_write>ann phone 17 tall</mem_write>"
    "<mem_write>ann bus 5</mem_write>",
    "<mem_recall>ann phone 17</mem_recall>",
    '<mem_merge ids="0,1"/>',
    "<mem_write>never closed",
    "<mem_write>the cat sat on the mat by the wide red door</mem_write>",
)


def bits(tree):
    """Any pytree as something that can be compared."""
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def tasks(settings):
    """Everything that the first tasks show."""
    suite = make_suite(settings)
    shown = []
    for task in [suite.task("train", n) for n in range(12)]:
        env = suite.make(task)
        shown += [env.reset(task.seed), env.goal]
        while not (result := env.step("")).done:
            shown.append(result.observation)
    return shown


def demonstrations(settings):
    """What the scripted expert says in the first tasks."""
    suite = make_suite(settings)
    expert = make_expert(suite, settings)
    make = make_episodes(suite, settings)
    said = []
    for n in range(8):
        episode, rng = make(suite.task("train", n), "x"), np.random.default_rng(n)
        while not episode.done and episode.observe() is not None:
            episode.act(expert(episode.situation(), rng))
        said += episode.actions
    return said


def episode(settings):
    """A scripted trajectory: what it is shown, its op log, its reward."""
    suite = make_suite(settings)
    episode = make_episodes(suite, settings)(suite.task("train", 0), "x")
    script, facts, views = iter(TURNS), {}, []
    shown = [0]

    def measure(view):
        past = [text for text, _ in view.history]
        fed = len(" ".join([view.system, *past, view.user]).split())
        return fed if view.fresh else shown[0] + fed

    while not episode.done and (view := episode.observe(measure)) is not None:
        shown[0] = measure(view)
        views.append(view)
        words = episode.situation().observation.split()
        if words[0] == "what":
            episode.act(f"<answer>{facts[words[2], words[3]]}</answer>")
        else:
            facts[words[0], words[1]] = words[-1]
            episode.act(next(script, ""))
    return views, episode.bank.log, episode.reward(), episode.turn_reward


def bank(settings):
    """Whether ScaNN serves a bank of 300 entries."""
    embedder = make_embedder(settings.memory.embedder)
    texts = [f"cat {i} of {i * i}" for i in range(300)]
    config = dataclasses.replace(settings.memory, capacity=0)
    index = Bank.from_texts(texts, config, embedder)._table.index
    index.settle()
    return index.blocks[0].approximate


def optimiser(settings):
    """Weights after four updates with a steady and a large gradient."""
    made = policy_optimiser(settings.train)
    params, state = WEIGHTS, made.init(WEIGHTS)
    for scale in (0.1, 3.0, 0.2, 0.1):
        grads = jax.tree.map(lambda x, s=scale: np.full_like(x, s), WEIGHTS)
        updates, state = made.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    return bits(params)


@jax.disable_jit()  # compiling anew for each setting would take seconds
def update(settings):
    """Gradients on a fixed batch, far from the policy that sampled it."""
    mesh = placement.make_mesh(1, 1, 1)
    programs = TrainPrograms(
        step_case.MODEL,
        mesh,
        policy_optimiser(settings.train),
        settings.objective,
        settings.credit,
        outcome_gate=settings.reward.outcome_gate,
    )
    params = step_case.new_state().params
    rows, facts = step_case.make_rows(), step_case.make_trajectories()
    score = facts.task_score.copy()
    score[0] = 0.5  # one group of equal task scores, with unequal penalties
    facts = facts._replace(task_score=score)
    scale = scheduled_values(3, settings).bonus_scale
    inputs = programs.loss_inputs(facts, count_tokens([rows], facts.valid), scale)
    old, _ = programs.score(params, rows, 1.0)
    seen = []
    for shift in (-0.6, 0.6):
        sums, _ = programs.accumulate(
            *(params, programs.zeros(), rows, old + np.float32(shift)),
            *(old - 0.2, inputs, 0.05, 1.0),
        )
        seen += [bits(sums.grads), bits(sums.loss_sum / sums.count)]
    return seen


def score_program(settings):
    """The program that scores rows, as text: nothing is compiled."""
    programs = TrainPrograms(
        step_case.MODEL,
        placement.make_mesh(1, 1, 1),
        policy_optimiser(settings.train),
        settings.objective,
        settings.credit,
        outcome_gate=settings.reward.outcome_gate,
    )
    params, rows = step_case.new_state().params, step_case.make_rows()
    score = programs.jitted()["score"]
    return score.lower(params, programs.place_rows(rows), np.float32(1)).as_text()


def policy(settings):
    """The initial policy, the reference, and how the model computes."""
    suite = make_suite(settings)
    made, reference = run._policies(settings, suite, make_run_mesh(settings))
    tokens = np.zeros((1, 4), np.int32)

    def total(params):
        return jnp.sum(made.model.hidden(params, tokens, tokens == 0))

    program = str(jax.make_jaxpr(jax.grad(total))(made.params))
    computes = [name for name in ("bf16", "remat") if name in program]
    return made.config, bits(made.params), bits(reference), computes


def chat(settings):
    """What the policy's chat template writes around a question."""
    made = initial_policy(make_suite(settings), settings)
    return made.tokenizer.prompt([{"role": "user", "content": "bus"}])


def adapters(settings):
    """What is trained of the policy, and what that adds to the weights."""
    suite = make_suite(settings)
    policy = make_nano(suite, settings)
    made = adapt(policy, settings, placement.make_mesh(1, 1, 1), "training")
    trained, _ = lora.split(made.params)
    ones = jax.tree.map(jnp.ones_like, made.params)
    merged = lora.merge(ones, made.model.lora) if made.model.lora else ones
    return jax.tree.structure(trained), bits(merged)


def mesh(settings):
    mesh = make_run_mesh(settings)
    return [
        (dict(each.shape), [device.id for device in each.devices.flat])
        for each in (mesh, make_sampling_mesh(settings, mesh))
    ]


def engine(settings, monkeypatch, shared):
    """Shapes of the engine's programs, which are replaced by empty ones."""
    seen = []

    def record(name, result):
        def program(*args, **static):
            cache = args[0] if name == "copy_rows" else args[2]
            shapes = jax.tree.map(jnp.shape, (cache, args[3:]))
            seen.append((name, str(shapes), static))
            return result(cache)

        return program

    empty = decode_module.Decoded(*[jnp.zeros(1)] * 3)
    monkeypatch.setattr(
        decode_module, "prefill", record("prefill", lambda cache: cache)
    )
    monkeypatch.setattr(
        decode_module, "copy_rows", record("copy_rows", lambda cache: cache)
    )
    decode = record("decode", lambda cache: (cache, empty))
    monkeypatch.setattr(decode_module, "decode", decode)
    suite = make_suite(settings)
    made, _ = make_collector(shared.policy, suite, settings, make_run_mesh(settings))
    made.set_params(shared.policy.params)
    made.warm_up()
    return seen


def cold_start(settings, monkeypatch, shared):
    """The rows of each cold start step, and where a steady gradient leads."""
    batches = []

    class Recorder:
        def __init__(self, model, mesh, optimiser, *settings, **named):
            self._optimiser = optimiser

        def trained(self, state):
            return state.params

        def supervised_zeros(self):
            return []

        def supervised_accumulate(self, params, sums, rows):
            return [*sums, bits(rows)]

        def apply(self, state, sums):
            batches.append(sums)
            grads = jax.tree.map(jnp.ones_like, state.params)
            changes, opt = self._optimiser.update(grads, state.opt_state, state.params)
            params = optax.apply_updates(state.params, changes)
            return TrainState(params, opt, state.step + 1), {"loss": 0.0}

    monkeypatch.setattr(cold_starts, "TrainPrograms", Recorder)
    suite = make_suite(settings)
    made = cold_starts.cold_start(shared.policy, suite, settings, shared.mesh)
    return batches, bits(made["final_norm"])


def step(settings, monkeypatch, shared, at=2):
    """One training step with compiled programs that all of these probes share."""
    trainer = Trainer(shared.policy, make_suite(settings), settings, shared.mesh)
    shared.lend(trainer)
    figures, trajectories = trainer.step(at)
    said = [t.actions for t in trajectories]
    figures = {k: v for k, v in figures.items() if "second" not in k and "_s" not in k}
    timed = ("recall_ms_p50", "recall_ms_p95", "compilations", "device_bytes")
    figures = {k: v for k, v in figures.items() if k not in timed}
    return said, str(figures), bits(trainer.state.params)


def slow_step(settings, monkeypatch, shared):
    """A training step on an environment that takes its time."""
    plain = LedgerEnv.step

    def slow(self, action, *, final=False):
        time.sleep(0.05)
        return plain(self, action, final=final)

    monkeypatch.setattr(LedgerEnv, "step", slow)
    return step(settings, monkeypatch, shared)


def skipping_step(settings, monkeypatch, shared):
    """A training step in which no update is finite."""
    plain = TrainPrograms.apply

    def skip(self, state, sums):
        state, figures = plain(self, state, sums)
        return state, figures | {"skipped": jnp.array(True)}

    monkeypatch.setattr(TrainPrograms, "apply", skip)
    trained = Trainer.step

    def step_and_check(self, at):
        monkeypatch.setattr(self, "step", functools.partial(trained, self))
        [made] = self.run(at, at + 1)
        return made

    monkeypatch.setattr(Trainer, "step", step_and_check)
    return step(settings, monkeypatch, shared)[0]


def evaluation(settings):
    """Which held-out tasks are run."""
    jobs = []
    collector = SimpleNamespace(run=lambda given, *_: jobs.extend(given) or [])
    engine = SimpleNamespace(set_params=lambda params: None)
    held_out.run_held_out(
        *(engine, collector, make_suite(settings), settings, None),
        greedy=True,
        stage="",
    )
    return [dataclasses.astuple(job) for job in jobs]
