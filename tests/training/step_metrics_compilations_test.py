import jax
import jax.numpy as jnp
import numpy as np

from mempo_jax.training.step_metrics import CompilationCounter


def test_counts_new_programs_and_new_shapes_alone():
    double = jax.jit(lambda x: x * 2 + 1)
    short, long = jnp.asarray(np.ones(3)), jnp.asarray(np.ones(4))
    with CompilationCounter() as counter:
        double(short)
        assert counter.count == 1
        double(short)
        assert counter.count == 1
        double(long)
        assert counter.count == 2
        assert counter.seconds > 0
    jax.jit(lambda x: x * 3)(short)
    assert counter.count == 2
