import pytest

from mempo_jax.envs import context as context_lib
from mempo_jax.memory import BLOCK, Grammar, parse_ops
from tests.envs.scripted_env import context


def text_of(view):
    history = "".join(f"{user}[{turn}]" for user, turn in view.history)
    return (view.system if view.fresh else "") + history + view.user


class Driver:
    """Drives one rule and measures as the rollout does, in characters."""

    def __init__(self, goal="goal", **settings):
        self.context = context_lib.Context(context(**settings), goal)
        self.segment = ""
        self.turn = 0

    def measure(self, view):
        return len(text_of(view)) + (0 if view.fresh else len(self.segment))

    def show(self, user, whole=None, moved=True):
        view = self.context.view(user, whole or user, moved, self.measure)
        if view is not None:
            self.segment = text_of(view) if view.fresh else self.segment + text_of(view)
        return view

    def act(self, text="act"):
        ops = parse_ops(text, grammar=Grammar(block=BLOCK))
        blocks = [op.content for op in ops if op.kind == "rewrite"]
        self.context.acted(self.turn, blocks[-1] if blocks else None)
        self.segment += text
        self.turn += 1


def test_append_keeps_everything_in_one_segment():
    run = Driver(rule="append")
    first = run.show("one")
    assert (first.fresh, first.system, first.history) == (True, "use memory\ngoal", ())
    for text in ("two", "three"):
        run.act()
        view = run.show(text)
        assert (view.fresh, view.history, view.user) == (False, (), text)


def test_append_that_no_longer_fits_is_over():
    run = Driver(rule="append", max_context_tokens=len("use memory\ngoal") + 9)
    assert run.show("one")
    run.act()
    assert run.show("two")
    run.act()
    assert run.show("3") is None


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_window_is_rebuilt_each_turn_with_its_last_turns(turns):
    run = Driver(rule="window", window_turns=turns)
    for at, text in enumerate(("a", "b", "c", "d")):
        view = run.show(text)
        assert view.fresh
        assert view.system == "use memory\ngoal"
        past = [("a", 0), ("b", 1), ("c", 2)][:at]
        assert view.history == tuple(past[len(past) - min(turns, at) :])
        run.act()
    assert run.context.rebuilds == 0  # the rule rebuilds, nothing forced it


def test_window_goes_on_behind_a_recall():
    run = Driver(rule="window", window_turns=1)
    run.show("question")
    run.act("recall")
    view = run.show("results", whole="question results", moved=False)
    assert (view.fresh, view.user) == (False, "results")
    run.act("answer")
    view = run.show("next")
    assert view.history == (("results", 1),)


def test_window_rebuilds_where_recalled_text_does_not_fit_behind():
    system = len("use memory\ngoal")
    run = Driver(rule="window", window_turns=2, max_context_tokens=system + 20)
    run.show("question")
    run.act("a long action")
    view = run.show("results", whole="question results", moved=False)
    assert (view.fresh, view.history, view.user) == (True, (), "question results")
    assert run.context.rebuilds == 1


def test_budget_appends_and_then_keeps_what_fits():
    system = len("use memory\ngoal")
    run = Driver(rule="budget", window_turns=2, max_context_tokens=system + 14)
    shown = []
    for text in ("aaa", "bbb", "ccc", "ddd", "eee"):
        view = run.show(text)
        shown.append((view.fresh, [turn for _, turn in view.history]))
        run.act()
    # Three texts and two acts of 3 characters each are one too long: one turn is kept.
    assert shown == [(True, []), (False, []), (True, [1]), (True, [2]), (True, [3])]
    assert run.context.rebuilds == 3


def test_budget_drops_the_oldest_turns_first():
    system = len("use memory\ngoal")
    run = Driver(rule="budget", window_turns=3, max_context_tokens=system + 20)
    run.show("a" * 12)
    run.act("x")
    run.show("b")
    run.act("y")
    view = run.show("c" * 12)
    assert (view.fresh, view.history) == (True, (("b", 1),))
    assert view.system == "use memory\ngoal"


def test_rolling_holds_goal_block_and_observation():
    run = Driver(rule="rolling", window_turns=5)
    assert run.show("one").system == "use memory\ngoal"
    run.act("x <mem>first</mem> then <mem> code is\n7 </mem>")
    view = run.show("two")
    assert view.fresh
    assert view.system == "use memory\ngoal\n<mem>code is\n7</mem>"
    assert (view.history, view.user) == ((), "two")
    run.act("no block this time, nor an <mem>open one")
    assert run.show("three").system == view.system
    run.act("<think> <mem>thought of</mem></think>")
    assert run.show("four").system == view.system
    run.act("<mem></mem>")
    assert run.show("five").system == "use memory\ngoal"


def test_rolling_is_rebuilt_behind_a_recall_too():
    run = Driver(rule="rolling")
    run.show("question")
    run.act("recall")
    view = run.show("results", whole="question results", moved=False)
    assert (view.fresh, view.user) == (True, "question results")


@pytest.mark.parametrize("rule", context_lib.RULES)
@pytest.mark.parametrize(("room", "fits"), [(0, True), (1, True), (-1, False)])
def test_an_exact_fit_is_kept_in_the_first_turn(rule, room, fits):
    length = len("use memory\ngoal") + len("one")
    view = Driver(rule=rule, max_context_tokens=length + room).show("one")
    assert (view is not None) == fits


@pytest.mark.parametrize("rule", context_lib.RULES)
def test_an_over_long_prompt_is_refused_never_cut(rule):
    run = Driver(rule=rule, goal="g" * 100, max_context_tokens=90)
    assert run.show("one") is None
    run = Driver(rule=rule, window_turns=2, max_context_tokens=60)
    for length in (5, 20, 40, 44, 46, 200):
        view = run.show("x" * length)
        if view is None:
            break
        assert len(run.segment) <= 60
        assert run.segment.startswith("use memory\ngoal")
        assert run.segment.endswith("x" * length)
        run.act()
    assert view is None


def test_no_instructions_leave_the_goal():
    assert Driver(instructions="").show("one").system == "goal"
    assert Driver(instructions="", goal="").show("one").system == ""


def test_variants_of_the_instructions_take_turns():
    settings = context(instruction_variants=("keep notes", "write it down"))
    said = [settings.variant(n).instructions for n in range(7)]
    assert said[:3] == ["use memory", "keep notes", "write it down"]
    assert said[3:] == [*said[:3], "use memory"]
    assert settings.variant(4).max_context_tokens == settings.max_context_tokens
    alone = context()
    assert [alone.variant(n) for n in range(3)] == [alone] * 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rule", "sliding"),
        ("window_turns", -1),
        ("write_reminder_every", -1),
        ("summary_titles", -1),
        ("max_context_tokens", 7),
        ("instruction_variants", ("other words", "")),
    ],
)
def test_impossible_settings_name_their_field(field, value):
    with pytest.raises(ValueError, match=rf"config\.context\.{field}: expected"):
        context(**{field: value})
