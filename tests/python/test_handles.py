"""Objects that own a handle of the library: they are not copied, and all their methods have a docstring."""

import ast
import copy
import gc
import inspect
import pathlib
import pickle
import sys

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

import deepreduce  # noqa: E402
from deepreduce._native import _call, _driver  # noqa: E402
from deepreduce._native._testing import emulated  # noqa: E402
from deepreduce.control import AdaptiveExchange, Controller  # noqa: E402
from deepreduce.exchange import Exchange, Loopback, Transport  # noqa: E402
from deepreduce.transform import Transform  # noqa: E402

TOP = "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw"


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda how: how.__name__)
def test_what_owns_a_handle_is_not_copied(how):
    x, transport = numpy.arange(300, dtype=numpy.float32), Loopback(1).transport(0)
    batch = deepreduce.Batch(x, "index=golomb")
    with emulated():
        for owner in (
            batch,
            batch.bind(x),
            Exchange(x, TOP, transport),
            Loopback(2),
            AdaptiveExchange(x, [None, TOP], "fit(target_ms=1)", transport),
            Controller("fit(target_ms=1)", 3),
            Transform([(4, 4)], "transform=lowrank(rank=1)"),
            deepreduce.Sender({"w": x}, TOP),
            _call.Context(1),
            _driver.DeviceArray(0, 1, (4,), "float32")._owner,
        ):
            with pytest.raises(TypeError, match=f"^{type(owner).__name__} is neither copied nor pickled"):
                how(owner)


class Interrupt(BaseException):
    """As KeyboardInterrupt."""


class Interrupts:
    """Raises an Interrupt at one of the places where CPython raises that of a signal: when a function of C has returned, or at
    the beginning of one of Python."""

    def __init__(self, at):
        self.left = at

    def __enter__(self):
        sys.setprofile(self._on_event)

    def __exit__(self, *_):
        sys.setprofile(None)

    def _on_event(self, frame, event, _):
        if event in ("call", "c_return") and not self._is_ending(frame):
            self.left -= 1
            if self.left < 0:
                raise Interrupt

    @staticmethod
    def _is_ending(frame):
        """Whether a finalizer runs, in which exceptions have no effect."""
        while frame and frame.f_code.co_name != "__del__":
            frame = frame.f_back
        return frame is not None


def one_call_objects():
    """(what, a call of it)"""
    x, out = numpy.arange(300, dtype=numpy.float32), numpy.zeros(300, numpy.float32)
    states = [deepreduce.State(x, TOP) for _ in range(5)]
    deepreduce.encode(x, TOP, state=states[0])
    batch = deepreduce.Batch(x, TOP)
    bound, frame = batch.bind(x, out, state=states[2]), batch.encode(x, state=states[1])
    room = numpy.zeros(batch.bound, numpy.uint8)
    sender, transform = deepreduce.Sender({"w": x}, TOP), Transform([(4, 4)], "transform=lowrank(rank=1) feedback=residual")
    exchange, control = Exchange(x, TOP, Loopback(1).transport(0)), Controller("fit(target_ms=1)", 3)
    return [
        ("encode", lambda: deepreduce.encode([x, x], TOP, state=[states[3], states[4]])),
        ("State", lambda: states[0].norm()),
        ("Batch", lambda: batch.encode(x, state=states[1])),
        ("Bound.encode", lambda: bound.encode(room)),
        ("Bound.decode", lambda: bound.decode(frame)),
        ("Bound.merge", lambda: bound.merge([frame])),
        ("Bound.rebind", lambda: bound.rebind(x)),
        ("a bound state", lambda: states[2].norm()),
        ("Sender", lambda: sender.scale(1)),
        ("Transform", lambda: transform.reset()),
        ("Exchange", lambda: exchange.state_dict()),
        ("Controller", lambda: control.report()),
    ]


def test_an_interrupt_at_any_moment_leaves_nothing_in_a_call():
    for what, call in one_call_objects():
        call()
        for at in range(10_000):
            try:
                with Interrupts(at):
                    call()
            except Interrupt:  # its traceback refers to the frames of the call
                try:
                    call()
                except deepreduce.ConcurrentUse as error:
                    pytest.fail(f"{what}: after an interrupt at event {at}: {error}")
            else:
                break
        assert at > 5


def test_a_call_has_ended_when_python_leaves_its_with_without_the_end():
    state = deepreduce.State(numpy.arange(300, dtype=numpy.float32), TOP)
    turns = _call.Turns([(state, "the state")])
    turns.__enter__()
    with pytest.raises(deepreduce.ConcurrentUse):
        state.norm()
    del turns
    state.norm()


def test_a_caught_error_refers_to_no_memory_of_the_call():
    x = numpy.arange(300, dtype=numpy.float32)
    frame, small = bytearray(deepreduce.encode(x, "index=golomb")[:-1]), [bytearray(3) for _ in range(4)]
    sender, bound = deepreduce.Sender({"w": x}, TOP), deepreduce.Batch(x, "index=golomb").bind(x)
    gc.disable()
    try:
        for error, call in (
            (deepreduce.CorruptFrame, lambda: deepreduce.decode(frame)),
            (deepreduce.CapacityError, lambda: deepreduce.encode(x, "index=golomb", out=small[0])),
            (deepreduce.CapacityError, lambda: deepreduce.Batch(x, "index=golomb").encode(x, out=small[1])),
            (deepreduce.CapacityError, lambda: bound.encode(small[2])),
            (deepreduce.ArgumentError, lambda: sender.write_state("w", "states", small[3])),
        ):
            try:
                call()
            except error:
                continue
            pytest.fail(f"no {error.__name__}")
        for room in (frame, *small):
            room.clear()  # a BufferError if an array of it exists
    finally:
        gc.enable()


def test_every_error_is_pickled_and_copied():
    from deepreduce.language import _syntax

    found, kinds = [], [deepreduce.Error]
    while kinds:
        kind = kinds.pop()
        found.append(kind)
        kinds += kind.__subclasses__()
    assert _syntax.LanguageError in found
    for kind in found:
        error = kind("why", _syntax.Place(2, 3), "instead").located("mine.drc", "a\nb") if kind is _syntax.LanguageError else kind("why")
        error.where = 3
        for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
            assert type(again) is kind and str(again) == str(error) and vars(again) == vars(error)


@pytest.mark.parametrize("kind", ["sender", "bound", "transform", "exchange"])
def test_in_a_cycle_of_garbage_a_context_ends_what_it_owns_first_and_once(kind, monkeypatch):
    """The collector ends the objects of a cycle in any order: here the context is the older one, so it is first."""
    ended = []

    def leave_a_cycle():
        made = _call.Context(1)
        own, destroy = made.own, made._destroy

        def watched(handle, end, **options):
            own(handle, lambda given: (ended.append(kind), end(given)), **options)

        made.own, made._destroy = watched, lambda handle: (ended.append("context"), destroy(handle))
        monkeypatch.setattr(sys.modules[f"deepreduce.{kind}"], "Context", lambda threads: made)
        x = numpy.arange(300, dtype=numpy.float32)
        made.user = {
            "sender": lambda: deepreduce.Sender({"w": x}, TOP),
            "bound": lambda: deepreduce.Batch(x, "index=golomb").bind(x),
            "transform": lambda: Transform([(4, 4)], "transform=lowrank(rank=1)"),
            "exchange": lambda: Exchange(x, TOP, Loopback(1).transport(0)),
        }[kind]()

    leave_a_cycle()
    monkeypatch.undo()
    gc.collect()
    assert ended == [kind, "context"]


OWNERS = {
    "sender": (lambda x: deepreduce.Sender({"w": x}, TOP), lambda sender: sender.take_back(0)),
    "sender's units": (lambda x: deepreduce.Sender({"w": x}, TOP), lambda sender: sender.encode(0, 0, bytearray(9999))),
    "batch": (lambda x: deepreduce.Batch(x, "index=golomb"), lambda batch: batch.encode(numpy.ones(300, numpy.float32))),
    "bound": (lambda x: deepreduce.Batch(x, "index=golomb").bind(x), lambda bound: bound.encode()),
    "transform": (lambda x: Transform([(4, 4)], "transform=lowrank(rank=1)"), lambda transform: transform.cancel()),
    "exchange": (lambda x: Exchange(x, TOP, Loopback(1).transport(0)), lambda exchange: exchange.cancel()),
}


@pytest.mark.parametrize("kind", OWNERS)
def test_the_finalizer_of_a_generator_may_use_what_has_ended(kind):
    """The collector ended the owner before the generator, whose `finally` then used freed memory."""
    make, call = OWNERS[kind]
    met = []

    def use(owner):
        try:
            yield
        finally:
            try:
                call(owner)
            except deepreduce.Error as error:
                met.append(error)

    owner = make(numpy.arange(300, dtype=numpy.float32))
    owner.generator = use(owner)
    next(owner.generator)
    del owner
    gc.collect()
    assert [type(error) for error in met] == [deepreduce.ArgumentError]


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_plans_and_states_are_copied(how):
    x = numpy.arange(300, dtype=numpy.float32)
    plan, state = deepreduce.Plan(TOP), deepreduce.State(x, TOP)
    deepreduce.encode(x, TOP, state=state)
    again, other = how(plan), how(state)
    del plan
    assert str(again) == str(deepreduce.Plan(TOP)) and other.state_dict()["state"].tobytes() == state.state_dict()["state"].tobytes()
    state.scale(2)
    assert numpy.array_equal(2 * other.residual, state.residual)


@pytest.mark.parametrize("name", ["exchange", "control", "transform", "mpi", "sender"])
def test_each_public_method_says_what_it_does(name):
    """Reads the source, which does not initialize MPI. A method may have the docstring of its base class."""
    path = pathlib.Path(deepreduce.__file__).parent / f"{name}.py"
    inherited = {name for name, value in vars(Transport).items() if inspect.isfunction(value)}
    silent = [
        f"{found.name}.{statement.name}"
        for found in ast.parse(path.read_text("utf-8")).body
        if isinstance(found, ast.ClassDef) and not found.name.startswith("_")
        for statement in found.body
        if isinstance(statement, ast.FunctionDef) and not statement.name.startswith("_") and not ast.get_docstring(statement)
        if not (found.name == "MpiTransport" and statement.name in inherited)
    ]
    assert silent == []
