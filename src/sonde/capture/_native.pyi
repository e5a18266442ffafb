# The C extension; `native.py` says what each of these is.
from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

MOST_PLACES: int
MOST_TOGETHER: int
SOURCES: str

def use_number(number: int, /) -> None: ...

class Row:
    def __init__(self, index: int, window: int, /) -> None: ...
    index: int
    window: int
    events: int
    shared: bool

class Book:
    @property
    def window(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def has_shared(self) -> bool: ...
    next: int
    limit: int
    threads: int
    def on_host(self, add: int, /) -> None: ...
    def on_cuda(
        self,
        device: int,
        launch: int,
        current: int,
        context: int,
        most_blocks: int,
        block_threads: int,
        several: int,
        piece: int,
        functions: Sequence[tuple[int, int, int, int]],
        /,
    ) -> None: ...
    def move(self, rows_per_page: int, pages: Sequence[int], memory: object, /) -> None: ...
    def turn(self, window: int, /) -> bytes: ...
    def forget(self, id: int, /) -> None: ...

class Place:
    def __init__(self, book: Book, row: Row | None, id: int, format: int, /) -> None: ...
    @property
    def row(self) -> Row | None: ...
    @property
    def book(self) -> Book: ...
    off: bool

class Seen:
    def __init__(self, x: Any, version: int, /) -> None: ...
    @property
    def ref(self) -> ref[Any]: ...
    @property
    def version(self) -> int: ...
    row: Row | None
    grad: GradHook | None

class GradHook:
    def __init__(self, owner: Any, spot: Any, returned: bool = False) -> None: ...
    @property
    def owner(self) -> Any: ...
    @property
    def spots(self) -> list[Any]: ...
    @property
    def returned(self) -> bool: ...
    def __call__(self, grad: Any, /) -> None: ...

class Native:
    def __init__(
        self,
        lock: Any,
        root: ref[Any],
        tensor: type,
        exchange: Any,
        backward: Callable[[], int],
        has_gradients: Callable[[], bool],
        /,
    ) -> None: ...
    live: bool
    alone: bool
    hears_gradients: bool
    bound: bool
    waiting: bool
    spent_ns: int
    def bind(self, stack: list[Any], calls: dict[Any, int], seen: dict[int, Seen], /) -> None: ...

class Lane:
    def __init__(
        self,
        native: Native,
        owner: Any,
        tap: Any,
        module: ref[Any],
        enters: bool,
        looks_at_inputs: bool,
        /,
    ) -> None: ...
    def enter(self, module: Any, /) -> bool: ...
    def leave(self, module: Any, output: Any, /) -> int: ...
    def put(self, call: int, place: Place | None, gradient: Any, /) -> None: ...
    def has(self, call: int, /) -> bool: ...

class Point:
    def __init__(self, native: Native, places: tuple[Place, ...], is_gradient: bool, /) -> None: ...
    def add(self, x: Any, /) -> bool: ...

class Bunch:
    def __init__(self, points: tuple[Point, ...], /) -> None: ...
    def add(self, tensors: list[Any], /) -> bool: ...
