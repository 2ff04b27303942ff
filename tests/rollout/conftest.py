import pytest

from tests.rollout import tiny
from tests.rollout.engine_case import make_engine, make_params


@pytest.fixture(scope="session")
def shared_engine():
    """Compiled once for all files of this folder."""
    engine = make_engine()
    engine.set_params(make_params())
    engine.warm_up(filtered=True)
    return engine


@pytest.fixture
def engine(shared_engine):
    shared_engine.cancel()
    shared_engine.set_params(make_params())
    return shared_engine


@pytest.fixture(scope="session")
def local():
    """A warm engine of ``tiny``; who gives it other parameters puts the old back."""
    return tiny.make_engine()
