"""Does the credit of a write tell the writes that were needed from the others?

    python -m benchmarks.credit --config=configs/base.py --policy=DIR [--policy=DIR2]
        [--data=FOLDER] [--tasks=40] [--json=FILE] [--out=docs/credit_accuracy.png]
        [--config.FIELD=VALUE ...]

From a policy (a Hugging Face directory), groups are sampled as the config's training
samples them, until --tasks of them are fit for training: groups of equal rewards are
not, and are left out. Then each mode of credit is computed by the trainer's own
functions. For every write that made an entry (new or merged; a duplicate stores nothing
and is only counted) the truth is known: *needed* if it was made on an observation that
holds the answer of a question that came, and its text carries it; *relevant* if it was
made on any observation worth remembering.

- credit: weight x group advantage + bonus, all that the trainer lays on the write's
  tokens. This is the headline: it is what changes the policy, and means the same for
  every mode. It holds luck, since a needless write in a lucky trajectory is praised
  too: a mode whose bonus does not stand out of that has assigned no credit.
- own: the bonus alone, or the weight alone for a mode without bonus: what the mode
  itself knows.

Mind that ``answer_probability`` asks of each text alone nearly what the truth asks, so
it does well here by its nature, also where a write was lost and earned nothing; the
others must find the needed among what happened.

AUC counts ties half; Spearman is against the truth as 0 and 1; 95 % intervals are a
bootstrap over groups. Takes a few minutes on two cores.
"""

from __future__ import annotations

import json
import pathlib

from absl import flags

from experiments.flags import Command, new_options
from experiments.launch import launch
from mempo_jax.settings import ConfigError

OPTIONS = new_options()
flags.DEFINE_multi_string(
    "policy", None, "a policy's directory; may be given again", flag_values=OPTIONS
)
flags.DEFINE_string("data", "", "folder of data files (bAbI)", flag_values=OPTIONS)
flags.DEFINE_integer("tasks", 40, "groups to judge by", flag_values=OPTIONS)
flags.DEFINE_string("json", "", "a file for all figures", flag_values=OPTIONS)
flags.DEFINE_string("out", "", "a PNG to write", flag_values=OPTIONS)


def main(command: Command) -> int:
    options, config = command.options, command.config
    if options.tasks < 2:
        raise ConfigError(f"--tasks: expected at least 2, got {options.tasks}")
    if options.data:
        config.env.data_dir = options.data
    figures = run(config.to_dict(), options.policy, options.tasks, _say)
    if options.json:
        path = pathlib.Path(options.json)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=1) + "\n")
    if options.out:
        from benchmarks import _credit_plot

        _credit_plot.save_accuracy(figures["policies"], pathlib.Path(options.out))
    return 0


def run(config: dict, directories: list[str], groups: int, say) -> dict:
    """All policies: plain data, tables said on the way."""
    from benchmarks import _credit_samples, _credit_tables
    from mempo_jax.builders.suites import make_suite
    from mempo_jax.config import from_config

    settings = from_config(config)
    suite = make_suite(settings)
    modes = _credit_samples.variants(settings.credit)
    policies = []
    for directory in directories:
        name = "/".join(pathlib.Path(directory).absolute().parts[-2:])
        say(f"\n{suite.name}, policy {name}")
        sampler = _credit_samples.Sampler(directory, settings, suite, modes)
        writes = sampler.writes(groups, say)
        policies.append({"name": name, "suite": suite.name} | figures_of(writes))
        say(_credit_tables.of_policy(policies[-1]))
    return {"groups": groups, "seed": settings.seed, "policies": policies}


def figures_of(writes) -> dict:
    """Plain data of one policy's writes: counts, fates, and a row for each mode."""
    from benchmarks import _credit_ranks as ranks

    def measured(credit) -> dict:
        return {
            truth: {
                measure.__name__: ranks.with_interval(
                    measure, credit, getattr(writes, truth), writes.group
                )
                for measure in (ranks.auc, ranks.spearman)
            }
            for truth in ("needed", "relevant")
        }

    return {
        "writes": len(writes.needed),
        "needed": int(writes.needed.sum()),
        "relevant": int(writes.relevant.sum()),
        "counts": writes.counts,
        "fates": writes.fates,
        "modes": {
            name: {
                "credit": measured(credit),
                "own": measured(writes.own[name]),
                "cost": writes.cost[name],
            }
            for name, credit in writes.credit.items()
        },
    }


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    launch(main, OPTIONS, required=("config", "policy"))
