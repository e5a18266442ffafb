"""The mechanism sees what a function does, and changes nothing of it. No framework needed."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import pdb  # noqa: T100
import pickle
import sys
import textwrap
import threading
import traceback
import weakref

import pytest

from sonde.tracing.functions.mechanism import Calls, Locals, names_in, observe


class Log:
    """A probe that writes down, per call: changed locals with the line that made them, the end."""

    def __init__(self, function):
        self.code = function.__code__
        own = [n for n in names_in(self.code) if n not in self.code.co_freevars]
        self.locals = Locals(self.code, own)
        self.calls = []
        self.firsts = []
        self.open = Calls()

    names = None
    strangers = frozenset()

    def start(self, frame, first):
        self.firsts.append(first)
        call = {"changes": [], "end": None, "last": 0, "values": {}, "yields": []}
        self.open[id(frame)] = call
        self.calls.append(call)
        self._look(frame, call)

    def line(self, frame, line):
        call = self.open[id(frame)]
        self._look(frame, call)
        call["last"] = line - self.code.co_firstlineno

    def returned(self, frame, value):
        self._end(frame, ("return", value))

    def yielded(self, frame, value):
        self._look(frame, self.open[id(frame)])
        self.open[id(frame)]["yields"].append(value)

    def unwound(self, frame):
        self._end(frame, ("unwind",))

    def _end(self, frame, how):
        call = self.open.pop(id(frame))
        self._look(frame, call)
        call["end"] = how

    def _look(self, frame, call):
        for name, value in self.locals.read(frame):
            if name not in call["values"] or call["values"][name] != value:
                call["values"][name] = copy.deepcopy(value)
                call["changes"].append((name, copy.deepcopy(value), call["last"]))


class Looking(Log):
    """A probe that reads and forgets."""

    def _look(self, frame, call):
        self.locals.read(frame)


def watched(function, *args, raises=None):
    """What the function returned, and the log of its calls."""
    log = Log(function)
    with observe(function, log):
        if raises is None:
            result = function(*args)
        else:
            with pytest.raises(raises) as caught:
                function(*args)
            result = caught.value
    assert function.__code__ is log.code
    assert not log.open
    return result, log.calls


def test_each_change_is_seen_once_with_the_line_that_made_it():
    def f(n):
        total = 0
        for i in range(n):
            total += i
        return total

    result, [call] = watched(f, 3)
    assert result == 3
    assert call["changes"] == [
        ("n", 3, 0),
        ("total", 0, 1),
        ("i", 0, 2),
        ("i", 1, 2),
        ("total", 1, 3),
        ("i", 2, 2),
        ("total", 3, 3),
    ]
    assert call["end"] == ("return", 3)


def test_calls_are_chosen_by_their_first_argument():
    class Choosy(Log):
        def start(self, frame, first):
            if first == 2:
                super().start(frame, first)

    def plain(a, b=0):
        return a

    def captured(a):
        return (lambda: a)()

    for f in (plain, captured):
        log = Choosy(f)
        with observe(f, log):
            assert [f(1), f(2), f(3)] == [1, 2, 3]
        assert [c["end"] for c in log.calls] == [("return", 2)]

    def starred(*args):
        return args

    log = Log(starred)
    with observe(starred, log):
        starred(1)
    assert log.firsts == [None]


def test_an_exception_is_told_apart_from_a_return_of_none():
    def f(x):
        y = x + 1
        if y > 1:
            raise ValueError(y)

    _, [call] = watched(f, 1, raises=ValueError)
    assert call["changes"] == [("x", 1, 0), ("y", 2, 1)]
    assert call["end"] == ("unwind",)
    _, [call] = watched(f, 0)
    assert call["end"] == ("return", None)


def test_what_changed_on_the_line_that_failed_is_seen():
    def f(x):
        x.append(1); fail()  # noqa: E702, F821  # fmt: skip

    _, [call] = watched(f, [], raises=NameError)
    assert call["changes"] == [("x", [], 0), ("x", [1], 1)]


def test_try_finally_and_early_return():
    def f(x):
        done = False
        try:
            if x:
                y = "early"
                return y
            y = "late"
        except KeyError:
            y = "never"
        finally:
            done = True
        return y + str(done)

    result, [call] = watched(f, 1)
    assert result == "early"
    assert call["changes"][-1] == ("done", True, 10)
    assert call["end"] == ("return", "early")
    result, [call] = watched(f, 0)
    assert result == "lateTrue"
    assert ("y", "late", 6) in call["changes"]


def test_an_exception_that_is_caught_inside_does_not_end_the_call():
    def f():
        try:
            int("x")
        except ValueError as error:
            kind = type(error).__name__
        return kind

    result, [call] = watched(f)
    assert result == "ValueError"
    assert ("kind", "ValueError", 4) in call["changes"]
    assert call["end"] == ("return", "ValueError")


def test_variables_of_comprehensions_are_other_variables():
    # fmt: off
    def f(xs):
        t = 7
        doubled = [
            t * 2
            for t in xs
        ]
        pairs = {t: [t for t in range(t)] for t in xs}  # noqa: C416
        kept = [x for x in xs]  # noqa: C416
        calls = [(lambda: t)() for t in xs]
        both = [
            (t, kept)
            for t in xs
            for kept in xs
            if t
        ]
        return doubled, pairs, t, kept, calls, both
    # fmt: on

    _, [call] = watched(f, [1, 2])
    assert [c for c in call["changes"] if c[0] == "t"] == [("t", 7, 1)]
    assert [c[:2] for c in call["changes"]] == [
        ("xs", [1, 2]),
        ("t", 7),
        ("doubled", [2, 4]),
        ("pairs", {1: [0], 2: [0, 1]}),
        ("kept", [1, 2]),
        ("calls", [1, 2]),
        ("both", [(1, 1), (1, 2), (2, 1), (2, 2)]),
    ]


def test_a_variable_that_a_nested_function_changes():
    def f():
        n = 0

        def bump():
            nonlocal n
            n += 1
            hidden = n
            return hidden

        bump()
        bump()
        return n

    result, [call] = watched(f)
    assert result == 2
    assert [c[:2] for c in call["changes"] if c[0] == "n"] == [("n", 0), ("n", 1), ("n", 2)]
    assert "hidden" not in call["values"]


def test_recursion_keeps_calls_apart():
    def fact(n):
        rest = 1 if n < 2 else fact(n - 1)
        return n * rest

    result, calls = watched(fact, 3)
    assert result == 6
    assert [c["values"] | {"fact": 0} for c in calls] == [
        {"n": 3, "rest": 2, "fact": 0},
        {"n": 2, "rest": 1, "fact": 0},
        {"n": 1, "rest": 1, "fact": 0},
    ]


def test_generators_are_one_call_from_first_to_last():
    def count(n):
        for i in range(n):
            got = yield i
        return got

    log = Log(count)
    with observe(count, log):
        a, b = count(2), count(3)
        assert [next(a), next(b), next(b)] == [0, 0, 1]
        assert list(a) == [1]
        b.close()
        assert next(count(1)) == 0
    gc.collect()
    first, second, third = log.calls
    assert first["yields"] == [0, 1]
    assert first["end"] == ("return", None)
    assert second["yields"] == [0, 1]
    # From 3.13 on, a generator that has nothing to clean up is closed without being run.
    assert second["end"] in (("unwind",), None)
    assert third["end"] in (("unwind",), None)


def test_all_kinds_of_statements_do_the_same_as_before():
    source = """
    def f(xs, *rest, key=None, **more):
        out = []
        with cm() as c, cm():
            out.append(c)
        while True:
            if len(out) > 3:
                break
            out.append(len(out))
        else:
            out.append("never")
        match xs:
            case [first, *others]:
                out.append((first, others))
            case _:
                out.append("no match")
        try:
            try:
                {}["missing"]
            except KeyError as error:
                raise RuntimeError("again") from error
        except RuntimeError as error:
            out.append(repr(error.__cause__))
        finally:
            out.append("finally")
        a, (b, *d) = 1, (2, 3, 4)
        del a
        out += [b, d, (lambda q: q + b)(1), f"{key!r}", sorted(more)]
        out.append([y for x in (1, 2) if x > 1 for y in range(x)])
        out.append("yes" if xs and rest else "no")
        assert out, "not empty"
        for _ in range(300):
            out.append(1) if (n := len(out)) < 20 else None
        return out, n
    """
    space = {"cm": lambda: contextlib.nullcontext(5)}
    exec(textwrap.dedent(source), space)
    f = space["f"]
    expected = f([1, 2, 3], 9, key="k", z=1)
    log = Log(f)
    with observe(f, log):
        assert f([1, 2, 3], 9, key="k", z=1) == expected
        assert f([], key=None) != expected
    assert log.calls[0]["end"] == ("return", expected)
    assert log.calls[0]["values"]["b"] == 2


def test_a_very_long_function_jumps_as_far_as_it_must():
    lines = [f"        x{i} = x{i - 1} + 1 if x{i - 1} != {i} else 0" for i in range(1, 400)]
    head = ["def f(n):", "    x0 = 0", "    for _ in range(n):"]
    source = "\n".join([*head, *lines, "        x0 += x399", "    return x0"])
    space = {}
    exec(source, space)
    f = space["f"]
    expected = f(3)
    result, [call] = watched(f, 3)
    assert result == expected
    assert call["values"]["x0"] == expected


def test_the_traceback_is_the_same_as_without():
    # fmt: off
    def f(x):
        y = x
        return (
            1 /
            y
        )
    # fmt: on

    def lines_of():
        try:
            f(0)
        except ZeroDivisionError as error:
            return [(s.name, s.lineno, s.colno) for s in traceback.extract_tb(error.__traceback__)]

    before = lines_of()
    with observe(f, Log(f)):
        assert [x for x in lines_of() if x[0] == "f"] == [x for x in before if x[0] == "f"]


def test_a_second_observer_and_closing_in_any_order():
    def f():
        a = 1
        return a

    one, two = Log(f), Log(f)
    original = f.__code__
    first, second = observe(f, one), observe(f, two)
    f()
    first.close()
    f()
    first.close()
    second.close()
    f()
    assert (len(one.calls), len(two.calls)) == (1, 2)
    assert f.__code__ is original


def test_every_thread_is_seen_and_kept_apart():
    barrier = threading.Barrier(4)

    def f(n):
        barrier.wait()
        total = 0
        for i in range(50):
            total += n * i
        return total

    log = Log(f)
    results = {}
    with observe(f, log):
        threads = [threading.Thread(target=lambda n=n: results.update({n: f(n)})) for n in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert results == {n: n * 1225 for n in range(4)}
    assert sorted(c["end"][1] for c in log.calls) == sorted(results.values())
    for call in log.calls:
        assert call["end"] == ("return", call["values"]["total"])


def test_a_trace_function_sees_the_same_lines_and_stays_installed():
    def f(n):
        total = 0
        for i in range(n):
            total += i
        return total

    def lines(observed):
        seen = []

        def tracer(frame, event, arg):
            if frame.f_code.co_name == "f" and frame.f_code.co_filename == __file__:
                seen.append((event, frame.f_lineno, dict(frame.f_locals)))
                return tracer
            return None

        before = sys.gettrace()
        sys.settrace(tracer)
        try:
            f(3)
            assert sys.gettrace() is tracer
        finally:
            sys.settrace(before)
        return [s for n, s in enumerate(seen) if n == 0 or s != seen[n - 1]]

    plain = lines(observed=False)
    log = Log(f)
    with observe(f, log):
        assert lines(observed=True) == plain
    assert log.calls[0]["values"] == {"n": 3, "total": 3, "i": 2}


def test_pdb_stops_at_its_breakpoint_and_can_change_a_variable():
    def f(n):
        a = n + 1
        b = a * 2
        return b

    log = Log(f)
    line = f.__code__.co_firstlineno + 2
    with observe(f, log):
        script = io.StringIO(f"b {__file__}:{line}\nc\np a\n!a = 100\nc\n")
        out = io.StringIO()
        debugger = pdb.Pdb(stdin=script, stdout=out, nosigint=True, readrc=False)
        debugger.use_rawinput = False
        before = sys.gettrace()
        try:
            assert debugger.runcall(f, 1) == 200
        finally:
            sys.settrace(before)
    assert [c[:2] for c in log.calls[0]["changes"]] == [("n", 1), ("a", 100), ("b", 200)]


def test_coverage_counts_the_same_lines(tmp_path):
    coverage = pytest.importorskip("coverage")
    path = tmp_path / "covered.py"
    path.write_text("def f(n):\n    if n:\n        a = 1\n    else:\n        a = 2\n    return a\n")
    space = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    f = space["f"]

    def counted(call):
        cov = coverage.Coverage(data_file=None, include=[str(path)])
        cov.start()
        try:
            call()
        finally:
            cov.stop()
        return sorted(cov.get_data().lines(str(path)) or [])

    plain = counted(lambda: f(1))
    log = Log(f)
    with observe(f, log):
        assert counted(lambda: f(1)) == plain == [2, 3, 6]
    assert log.calls[0]["values"] == {"n": 1, "a": 1}


def test_values_are_not_kept_alive_by_looking_at_them():
    class Big:
        pass

    def f(make):
        x = make()
        x = None
        alive.append(probe_ref() is not None)
        return x

    alive, probe_ref = [], None

    def make():
        nonlocal probe_ref
        big = Big()
        probe_ref = weakref.ref(big)
        return big

    with observe(f, Looking(f)):
        f(make)
    assert alive == [False]


def test_an_argument_is_not_kept_alive_by_telling_of_it():
    class Thing:
        pass

    class Indifferent(Log):
        names = ("y",)

        def start(self, frame, first):
            pass

    seen = []

    def f(x):
        seen.append(weakref.ref(x))
        x = None
        seen.append(seen[0]() is None)
        y = x
        return y

    with observe(f, Indifferent(f)):
        f(Thing())
    assert seen[1] is True


def test_a_dict_from_locals_is_left_to_the_function():
    def f(x):
        mine = locals()
        y = x + 1
        return mine["x"] + y

    with observe(f, Looking(f)):
        assert f(1) == 3


def test_an_error_of_a_probe_leaves_into_the_function_and_closing_still_works():
    class Broken(Log):
        def line(self, frame, line):
            raise OSError("no")

    def f():
        return 1

    with observe(f, Broken(f)), pytest.raises(OSError, match="no"):
        f()
    assert f() == 1


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="only a patched function carries us along")
def test_what_is_pickled_of_a_function_under_observation_is_inert():
    def f(first):
        return 1

    log = Log(f)
    log.strangers = frozenset([1])
    with observe(f, log):
        assert hash(f.__code__) == hash(f.__code__)
        log.open[0] = io.StringIO()  # something that cannot be pickled
        copied = [pickle.loads(pickle.dumps(c)) for c in f.__code__.co_consts]
        added = copied[len(f.__code__.co_consts) - len(copied) :]
        assert {} in added
        relays = [c for c in added if callable(c) and c is not id]
        assert relays
        for relay in relays:
            assert relay(1) is None


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs sys.monitoring")
def test_the_tool_id_is_given_back():
    def f():
        return 1

    used = [sys.monitoring.get_tool(i) for i in range(6)]
    with observe(f, Log(f)):
        assert "sonde" in [sys.monitoring.get_tool(i) for i in range(6)]
    assert [sys.monitoring.get_tool(i) for i in range(6)] == used


# -- what is not told of -------------------------------------------------------------------------


class Sparing(Log):
    """Looks at `y` alone, and counts the lines that it is told of."""

    names = ("y",)

    def __init__(self, function):
        super().__init__(function)
        self.locals = Locals(self.code, ["y"])
        self.lines = []

    def line(self, frame, line):
        self.lines.append(line - self.code.co_firstlineno)
        super().line(frame, line)


def test_lines_on_which_nothing_can_be_seen_are_not_told_of():
    def late(n):
        total = 0
        for i in range(n):
            total += i
        y = total
        y += 1
        return y

    def in_a_loop(n):
        total = 0
        for i in range(n):
            total += i
            y = total
        return y

    def argument(y):
        total = 0
        return total

    def never(n):
        total = n
        return total

    def caught(n):
        total = 0
        try:
            total = 1 // n
        except ZeroDivisionError:
            y = -1  # noqa: F841
        return total

    def nested(n):
        total = n

        def inner():
            nonlocal y
            y = 5

        inner()
        y = total
        return y

    expected = {
        late: {4, 5},
        in_a_loop: {2, 3, 4},
        argument: {1},
        never: set(),
        nested: {1, 3, 7, 8, 9},
    }
    for function, lines in expected.items():
        log = Sparing(function)
        with observe(function, log):
            result = function(2)
        assert set(log.lines) == lines, function.__name__
        assert result == function(2)
    log = Sparing(caught)
    with observe(caught, log):
        caught(0)
        caught(0)
    assert {5} <= set(log.lines) <= {4, 5, 6}
    assert [c["changes"] for c in log.calls] == [[("y", -1, 5)]] * 2


def test_a_second_observer_of_all_lines_sees_all_of_them():
    def late(n):
        total = 0
        total += n
        y = total
        return y

    first, second = Sparing(late), Sparing(late)
    second.names = None
    with observe(late, first):
        late(1)
        assert first.lines == [3]
        with observe(late, second):
            late(1)
        assert second.lines == [1, 2, 3, 4]
        first.lines.clear()
        late(1)
        assert first.lines == [3]
    with observe(late, second):
        second.lines.clear()
        late(1)
        assert second.lines == [1, 2, 3, 4]


def test_strangers_are_not_asked():
    class Odd:
        """Neither hash nor comparison may be asked for."""

        __hash__ = None

        def __eq__(self, other):
            raise AssertionError

        def method(self):
            y = 1
            return y

    known, stranger, other = Odd(), Odd(), Odd()
    log = Sparing(Odd.method)
    log.strangers = frozenset([id(stranger)])
    with observe(Odd.method, log):
        assert [o.method() for o in (known, stranger, other)] == [1, 1, 1]
    assert log.firsts[0] is known
    assert log.firsts[-1] is other
    if sys.version_info < (3, 12):
        assert len(log.firsts) == 2
