"""Probes of ``config_walk_test`` for what memory and credit ask of models."""

import numpy as np
import pytest

from mempo_jax.builders import memory_models
from mempo_jax.builders.engines import make_run_mesh
from mempo_jax.builders.policies import make_nano
from mempo_jax.builders.suites import make_suite
from mempo_jax.memory import Bank, embedding
from tests.rollout import probe_case


class SentenceLibrary:
    """Stands for the optional library of sentence models."""

    class SentenceTransformer:
        def __init__(self, path, device):
            self.path = path

        def __iter__(self):
            return iter(())

        def state_dict(self):
            return {}

        def encode(self, texts, **options):
            return np.ones((len(texts), 2))


def embedder(settings):
    """The model that the library of sentence models is asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedding, "_import_library", lambda: SentenceLibrary)
        return settings.memory.make_embedder().name


def next_tasks(settings):
    """How many entries, tombstones included, a bank holds after each of some tasks."""
    bank, sizes = Bank(settings.memory, settings.memory.make_embedder()), []
    for task in range(4):
        for turn in range(3):
            bank.write(f"ann phone is {10 + 3 * task + turn}", step=turn)
        bank = bank.next_task(str(task))
        sizes.append(len(bank.entries))
    return sizes


def advice(settings):
    """What the memory asks the policy, what answers count, and how long they may be."""
    suite, mesh = make_suite(settings), make_run_mesh(settings)
    policy = make_nano(suite, settings)
    given = memory_models.make_memory_models(policy, settings, mesh)
    seen = [sorted(policy.tokenizer.vocabulary())]
    if given.summarise is None:
        return seen
    prompts = [*given.judge._prompts, given.summarise._prompt]
    texts = {"new": "ann", "old": "bob", "text": "cleo", "max_chars": "9"}
    seen += [prompt.encode(**texts) for prompt in prompts]
    answers = np.asarray(given.judge._answers).tolist()
    return [*seen, answers, given.summarise._most_tokens]


def evidence(settings):
    """What a scripted trajectory with an eviction is probed for, by a fixed reader."""
    write = probe_case.WRITE.format
    script = [write("gold"), write("one two"), probe_case.RECALL, probe_case.ANSWER]
    trajectories = probe_case.play(script, capacity=1)
    return [
        x.tolist()
        for x in probe_case.evidence(trajectories, settings.credit.required_probes)
    ]
